"""Known pairs with their evidence, and known-bad combinations with their sources."""

from slipstream.recipes.loading import find_recipes, load_known_bad, load_recipes, load_recipes_for
from slipstream.recipes.recipe import KnownBad, Recipe

__all__ = [
    "KnownBad",
    "Recipe",
    "find_recipes",
    "load_known_bad",
    "load_recipes",
    "load_recipes_for",
]
