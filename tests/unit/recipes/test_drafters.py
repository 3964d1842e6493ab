"""The index of published drafters and the known models: sourced, unique, and in agreement."""

from collections import Counter

import pytest

from slipstream.checkpoints.hub import name_stem
from slipstream.checkpoints.pairing import pair
from slipstream.engines.vllm_tables import read_auxiliary_targets
from slipstream.planning.memory.cache import token_bytes
from slipstream.recipes import (
    KnownModel,
    PublishedDrafter,
    load_drafters,
    load_models,
    load_recipes,
)

DRAFTERS = load_drafters()
MODELS = load_models()


def name(entry: PublishedDrafter) -> str:
    return entry.drafter or f"{entry.method} of {entry.target}"


def test_every_drafter_stands_in_the_index_once() -> None:
    named = [entry.drafter.lower() for entry in DRAFTERS if entry.drafter]
    assert [one for one, count in Counter(named).items() if count > 1] == []
    native = [(entry.target, entry.method) for entry in DRAFTERS if entry.drafter is None]
    assert [one for one, count in Counter(native).items() if count > 1] == []


def test_every_source_can_be_followed() -> None:
    short = [one for entry in DRAFTERS for one in entry.sources if len(one) <= 10]
    assert short == []


def test_only_heads_that_engines_find_in_the_target_have_no_name() -> None:
    assert {entry.method for entry in DRAFTERS if entry.drafter is None} == {"mtp", "dspark"}


def test_the_drafter_of_every_recipe_is_in_the_index() -> None:
    named = {entry.drafter for entry in DRAFTERS}
    assert {recipe.drafter for recipe in load_recipes()} <= named


def test_a_recipe_and_the_index_agree_on_what_a_drafter_was_made_for() -> None:
    made_for = {entry.drafter: name_stem(entry.target) for entry in DRAFTERS}
    known = {name_stem(model.facts.name) for model in MODELS}
    for recipe in load_recipes():
        stem = name_stem(recipe.target)
        assert stem not in known or made_for[recipe.drafter] == stem, recipe.name


@pytest.mark.parametrize("entry", [one for one in DRAFTERS if one.facts], ids=name)
def test_the_facts_of_a_drafter_fit_those_of_its_target(entry: PublishedDrafter) -> None:
    assert entry.facts is not None
    assert entry.facts.name == entry.drafter
    assert entry.facts.source
    assert entry.facts.complete is False
    assert entry.facts.weights is not None
    targets = [model.facts for model in MODELS if model.facts.name == entry.target]
    assert [pair(target, entry.facts).refusals for target in targets] == [()] * len(targets)
    assert targets or entry.target == "moonshotai/Kimi-K2.5"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.facts.name)
def test_a_known_model_has_what_a_memory_budget_needs(model: KnownModel) -> None:
    facts = model.facts
    assert facts.source
    assert facts.complete is False
    assert facts.architecture in read_auxiliary_targets() or facts.predicting_layers
    assert facts.weights is not None
    assert token_bytes(facts, "auto")
    assert facts.vocabulary_size
    assert all(
        build.source and name_stem(build.name) == name_stem(facts.name) for build in model.builds
    )


def test_known_models_and_their_builds_are_unique() -> None:
    stems = [name_stem(model.facts.name) for model in MODELS]
    assert len(stems) == len(set(stems)) >= 45
    builds = [build.name for model in MODELS for build in model.builds]
    assert len(builds) == len(set(builds)) >= 35


def test_every_drafter_without_files_of_its_own_is_of_a_target_that_may_have_mtp_layers() -> None:
    native = {entry.target for entry in DRAFTERS if entry.drafter is None}
    stated = {model.facts.name: model.facts.predicting_layers for model in MODELS}
    assert all(stated[name] for name in native & stated.keys())


def test_others_builds_may_have_left_out_mtp_layers_and_all_share_the_template() -> None:
    model = next(one for one in MODELS if one.facts.name == "zai-org/GLM-4.6")
    own, other = (model.describe(f"{owner}/GLM-4.6-FP8") for owner in ("zai-org", "somebody"))
    assert (own.predicting_layers, other.predicting_layers) == (1, None)
    assert own.conversation == other.conversation == model.facts.conversation
    assert own.conversation is not None


def test_a_build_shares_the_shape_and_has_its_own_size() -> None:
    model = next(one for one in MODELS if one.facts.name == "Qwen/Qwen3.6-27B")
    known, unknown = (model.describe(f"{owner}/Qwen3.6-27B-FP8") for owner in ("Qwen", "somebody"))
    assert known.layers == unknown.layers == model.facts.layers
    assert known.quantization is not None
    assert known.quantization.scheme == "fp8"
    assert known.weights is not None
    assert model.facts.weights is not None
    assert known.weights.total_bytes < model.facts.weights.total_bytes
    assert (unknown.weights, unknown.quantized, unknown.licence) == (None, None, None)
    assert "of which it is a build" in unknown.source
