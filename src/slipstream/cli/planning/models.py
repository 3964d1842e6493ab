"""`slipstream models`: known pairs, or what is known of a target and whether a drafter fits it."""

import argparse
import os

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.pairing import pair
from slipstream.cli.options import OptionAdder, add_host
from slipstream.cli.planning.plan import TARGET_HELP, find_host, load_library
from slipstream.cli.planning.targets import find_target
from slipstream.cli.screen import Screen
from slipstream.engines.vllm import find_engine_faults
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.hardware import find_capability, name_kind
from slipstream.planning.drafters.resolution import report_model
from slipstream.recipes import find_recipes, load_recipes
from slipstream.recipes.recipe import Recipe, RecipeList
from slipstream.reporting.text.model import (
    render_model,
    render_pairing,
    render_recipe,
    render_recipes,
)
from slipstream.user_folders import recipe_overlay

EXAMPLES = """\
# known pairs for a DGX Spark
slipstream models --host gb10
# a model's layers and size, its known pairs, and its drafters, the one that `plan` chooses first
slipstream models Qwen/Qwen3-8B
# does this drafter fit? exit code 1 if not
slipstream models Qwen/Qwen3-8B --drafter z-lab/Qwen3-8B-DFlash-b16
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "[TARGET]",
        f"{TARGET_HELP}, a pattern such as 'qwen/*', or a recipe (default: all known pairs)",
    )
    add("--recipe RECIPE", "print one known pair with its settings and evidence")
    add_host(add, "machine to list pairs, rank drafters and check a pair for")
    add(
        "--revision REVISION",
        "branch, tag or commit of the target on the hub (default: the main branch)",
    )
    add = add.group("pair check")
    add("--drafter DRAFTER", "local folder or hub name of a drafter to check against the target")
    add("--k TOKENS", "draft length, in tokens per step, to check the pair for")
    add("--context TOKENS", "context length to check the pair for")
    add.parser.usage = "slipstream models [TARGET] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print known pairs, one of them, a target with its drafters, or a pair with its faults."""
    if options.target is not None and options.drafter is not None:
        return _check_pair(options, screen)
    if any(recipe.name == options.target for recipe in _load_pairs()):
        options.recipe, options.target = options.target, None
    if options.recipe or options.target is None or set(options.target) & set("*?["):
        return _list_pairs(options, screen)
    target = find_target(options.target)

    def read(name: str, *, tokenizer: bool) -> Checkpoint:
        revision = options.revision if name == target else None
        return read_checkpoint(name, revision, tokenizer=tokenizer)

    with screen.busy(f"reading {target} and searching drafters"):
        report = report_model(target, name_kind(find_host(options.host)), load_library(read))
    screen.show_data(text=render_model(report), document=report.to_json())
    return ExitCode.DONE


def _load_pairs() -> tuple[Recipe, ...]:
    return load_recipes(overlay=recipe_overlay(os.environ))


def _list_pairs(options: argparse.Namespace, screen: Screen) -> ExitCode:
    machine = None if options.host is None else name_kind(find_host(options.host))
    found = find_recipes(_load_pairs(), target=options.target, machine=machine)
    if options.recipe:
        found = tuple(recipe for recipe in found if recipe.name == options.recipe)
    if options.recipe and not found:
        raise InvalidInputError(
            f"there is no recipe {options.recipe}, nor is one in {recipe_overlay(os.environ)}",
            hint="slipstream models",
        )
    if not found:
        raise InvalidInputError("no known pair matches", hint="slipstream models")
    if options.recipe:
        screen.show_data(text=render_recipe(found[0]), document=found[0].to_json())
    else:
        screen.show_data(text=render_recipes(found), document=RecipeList(recipes=found).to_json())
    return ExitCode.DONE


def _check_pair(options: argparse.Namespace, screen: Screen) -> ExitCode:
    with screen.busy(f"reading {options.target} and {options.drafter}"):
        for name in (options.target, options.drafter):
            find_target(name)
        target = read_checkpoint(options.target, options.revision)
        drafter = read_checkpoint(options.drafter)
    pairing = pair(target, drafter, draft_length=options.k, context=options.context)
    accelerators = find_host(options.host).accelerators
    capability = find_capability(accelerators)
    engine = find_engine_faults(target, drafter, on_cpu=not accelerators, capability=capability)
    pairing = pairing.model_copy(update={"faults": (*pairing.faults, *engine)})
    screen.show_data(text=render_pairing(pairing), document=pairing.to_json())
    return ExitCode.EXPECTED_FAILURE if pairing.refusals else ExitCode.DONE
