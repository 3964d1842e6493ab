"""Known pairs with their evidence, and known-bad combinations with their sources."""

from slipstream.recipes.loading import (
    find_recipes,
    load_drafters,
    load_known_bad,
    load_models,
    load_recipes,
    load_recipes_for,
)
from slipstream.recipes.recipe import KnownBad, KnownModel, PublishedDrafter, Recipe

__all__ = [
    "KnownBad",
    "KnownModel",
    "PublishedDrafter",
    "Recipe",
    "find_recipes",
    "load_drafters",
    "load_known_bad",
    "load_models",
    "load_recipes",
    "load_recipes_for",
]
