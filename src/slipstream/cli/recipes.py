"""`slipstream recipes`: the catalogue of known pairs, or one recipe in full."""

import argparse
import os

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.hardware import load_host, name_kind
from slipstream.recipes import Recipe, find_recipes, load_recipes
from slipstream.recipes.recipe import RecipeList
from slipstream.reporting.text.recipe import render_recipe, render_recipes
from slipstream.user_folders import recipe_overlay

EXAMPLES = """\
# what is known for a DGX Spark
slipstream recipes --host gb10
# one recipe with its settings, sources and figures
slipstream recipes --show qwen3.5-27b-nvfp4-gb10
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `recipes`."""
    parser.add_argument(
        "--target",
        metavar="TARGET",
        help="only recipes for this target; may be a shell pattern such as 'qwen/*'",
    )
    parser.add_argument(
        "--host",
        metavar="NAME|FILE",
        help="only recipes for this kind of machine, a known name such as gb10 or a file written "
        "by `slipstream probe --json`",
    )
    parser.add_argument(
        "--show", metavar="RECIPE", help="print one recipe with its settings and evidence"
    )
    parser.usage = "slipstream recipes [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """List recipes or print one."""
    recipes = load_recipes(overlay=recipe_overlay(os.environ))
    if options.show is not None:
        recipe = _find(recipes, options.show)
        screen.show_data(text=render_recipe(recipe), document=recipe.to_json())
        return ExitCode.DONE
    machine = None if options.host is None else name_kind(load_host(options.host))
    found = find_recipes(recipes, target=options.target, machine=machine)
    if not found:
        raise InvalidInputError("no recipe matches", hint="slipstream recipes")
    document = RecipeList(recipes=found)
    screen.show_data(text=render_recipes(found), document=document.to_json())
    return ExitCode.DONE


def _find(recipes: tuple[Recipe, ...], name: str) -> Recipe:
    for recipe in recipes:
        if recipe.name == name:
            return recipe
    raise InvalidInputError(f"unknown recipe {name}", hint="slipstream recipes")
