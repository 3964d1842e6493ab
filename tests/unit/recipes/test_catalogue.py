"""The catalogue that ships: every entry loads, is sourced, and is about machines we know."""

import re
from typing import get_args

import pytest

from slipstream.checkpoints.checkpoint import Family
from slipstream.hardware import list_machines, load_host, name_kind
from slipstream.recipes import KnownBad, Recipe, load_known_bad, load_recipes
from slipstream.recipes.loading import SHIPPED

RECIPES = load_recipes()
KNOWN_BAD = load_known_bad()
# Kinds that no machine ships for: Intel's GPUs are not planned for, and the source of the MI300
# recipe does not say whether it was an MI300X or an MI300A.
EXPLAINED = {"arc-b70", "mi300"}
KINDS = {name_kind(load_host(machine)) for machine in list_machines()} | EXPLAINED
ENGINE = (0, 32)


def is_older(version: str) -> bool:
    """Return whether every release that a free text names is before ours."""
    named = [(int(major), int(minor)) for major, minor in re.findall(r"\b(\d)\.(\d+)", version)]
    return bool(named) and max(named) < ENGINE


def test_recipes_and_known_bad_combinations_name_kinds_of_machines_that_ship() -> None:
    named = {kind for recipe in RECIPES for kind in recipe.machines}
    named |= {kind for entry in KNOWN_BAD for kind in entry.when.machines}
    assert named <= KINDS
    assert named >= EXPLAINED


def test_every_file_is_loaded_and_named_as_its_entry() -> None:
    assert {recipe.name for recipe in RECIPES} == {path.stem for path in SHIPPED.glob("*.toml")}
    assert len(RECIPES) >= 45
    assert {entry.name for entry in KNOWN_BAD} == {
        path.stem for path in SHIPPED.glob("known-bad/*.toml")
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_names_a_hub_model_what_is_obsolete_and_figures_or_notes(
    recipe: Recipe,
) -> None:
    assert recipe.target.count("/") == 1
    older = recipe.engine == "vllm" and is_older(recipe.engine_version)
    assert recipe.obsolete or not older
    figures = ("tokens_per_s", "speedup", "acceptance_length", "acceptance_rate", "ttft_ms")
    for one in recipe.evidence:
        assert one.note or any(getattr(one, name) is not None for name in figures)


def test_every_row_of_the_best_measured_pair_is_there_with_its_latencies() -> None:
    (recipe,) = (one for one in RECIPES if one.name == "qwen3.5-27b-nvfp4-gb10")
    rows = [one for one in recipe.evidence if one.settings == "k 15, temperature 0"]
    code, prose = (
        [
            (one.concurrency, one.tokens_per_s, one.ttft_ms, one.tpot_ms)
            for one in rows
            if one.workload == kind and one.concurrency
        ]
        for kind in ("code", "prose")
    )
    assert code[-1] == (16, 327.9, 884, 47.1)
    assert prose == [
        (1, 29.5, 225, 33.6),
        (4, 83.5, 432, 46.8),
        (8, 122.4, 557, 64.4),
        (16, 151.8, 860, 104),
    ]
    by_context = [one.tokens_per_s for one in recipe.evidence if "of context" in one.workload]
    assert by_context == [31.81, 23.92, 19.43, 33.35, 24.2, 17.22]
    compressed = [one for one in recipe.evidence if "TurboQuant" in one.settings]
    assert len([one for one in compressed if "of context" not in one.workload]) == 2 * 8


def test_versions_are_told_apart() -> None:
    assert is_older("aeon 0.22.1 to 0.27.1")
    assert is_older("0.19.2rc1.dev21+g893611813")
    assert not is_older("0.31.1, then 0.32.0")
    assert not is_older("build of PR #41703")
    assert any(is_older(recipe.engine_version) for recipe in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_facts_of_a_recipe_are_about_its_models_and_say_where_they_come_from(
    recipe: Recipe,
) -> None:
    for name, facts in (
        (recipe.target, recipe.target_facts),
        (recipe.drafter, recipe.drafter_facts),
    ):
        if facts is not None:
            assert facts.name == name
            assert facts.source
            assert facts.complete is False
    assert recipe.target_facts is None or recipe.target_facts.draft is None
    assert recipe.drafter_facts is None or recipe.drafter_facts.draft is not None


@pytest.mark.parametrize("entry", KNOWN_BAD, ids=lambda entry: entry.name)
def test_the_condition_of_a_known_bad_combination_can_be_met(entry: KnownBad) -> None:
    assert entry.when.model_dump(exclude_defaults=True)
    assert set(entry.when.families) <= set(get_args(Family))
    assert set(entry.when.runners) <= {"V1", "V2"}
    assert all(re.fullmatch(r"\d+\.\d", capability) for capability in entry.when.capabilities)
