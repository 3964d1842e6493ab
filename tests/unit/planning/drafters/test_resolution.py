"""A target finds its recipe and drafter, and facts come from files before recipes."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.planning.drafters.library import Library
from slipstream.planning.drafters.resolution import Resolved, choose_recipe, resolve
from slipstream.planning.settings.options import Goal, make_options
from slipstream.recipes import Recipe, load_drafters, load_models
from tests.unit.planning.cells import read_nothing
from tests.unit.planning.drafters.test_candidates import publish
from tests.unit.planning.pieces import DRAFTER, TARGET, make_recipe

INDEX: dict[str, Any] = {"load_drafters": load_drafters, "load_models": load_models}


def read_both(name: str, *, tokenizer: bool) -> Checkpoint:
    found = {TARGET.name: TARGET, DRAFTER.name: DRAFTER}.get(name)
    if found is None:
        raise MissingPartError(f"{name} is not here", hint="fetch it")
    return found.model_copy(update={"tokenizer_sha256": "t" if tokenizer else None})


def find(
    *recipes: Recipe,
    offline: bool = False,
    index: dict[str, Any] | None = None,
    **options: Any,
) -> Resolved:
    read = read_nothing if offline else read_both
    library = Library(read, lambda name: recipes, **(index or {}))
    return resolve(TARGET.name, make_options(**options), "gb10", library)


def test_a_recipe_of_this_machine_goes_before_others() -> None:
    elsewhere = make_recipe(name="elsewhere", machines=("h100",))
    here = make_recipe(name="here")
    assert choose_recipe((elsewhere, here), TARGET.name, None, "gb10") == here
    assert choose_recipe((elsewhere,), TARGET.name, None, "gb10") == elsewhere


def test_vllm_and_fewer_machines_go_before_others() -> None:
    other = make_recipe(name="a", engine="sglang")
    linked = make_recipe(name="b", nodes=2)
    plain = make_recipe(name="c")
    assert choose_recipe((other, linked, plain), TARGET.name, None, "gb10") == plain
    assert choose_recipe((other, linked), TARGET.name, None, "gb10") == linked


def test_a_named_drafter_chooses_among_recipes() -> None:
    first, second = make_recipe(name="a"), make_recipe(name="b", drafter="other/drafter")
    assert choose_recipe((first, second), TARGET.name, "other/drafter", "gb10") == second
    assert choose_recipe((first,), TARGET.name, "third/drafter", "gb10") is None
    assert choose_recipe((first,), TARGET.name.lower(), None, "gb10") == first


def test_the_recipes_drafter_is_read() -> None:
    found = find(make_recipe())
    assert found.drafter is not None
    assert found.drafter.name == DRAFTER.name
    assert found.notes == ()


@pytest.mark.parametrize(
    "words",
    [
        ("--speculative-config", '{"model": "Qwen/Qwen3-8B"}'),
        ("--speculative-config.model=Qwen/Qwen3-8B",),
        ("--spec-model", "Qwen/Qwen3-8B"),
    ],
)
def test_a_drafter_that_the_engine_is_given_is_the_one_that_is_read(words: tuple[str, ...]) -> None:
    found = find(make_recipe(), drafter="third/drafter", engine=words)
    assert found.drafter is not None
    assert found.drafter.name == "Qwen/Qwen3-8B"
    assert found.recipe is None


def test_a_method_without_a_drafter_needs_none() -> None:
    assert find(make_recipe(), engine=("--spec-method", "ngram")).drafter is None


def test_the_targets_tokenizer_is_read_only_to_be_compared() -> None:
    assert find(make_recipe()).target.tokenizer_sha256 == "t"
    assert find(make_recipe(), method="plain").target.tokenizer_sha256 is None


def test_without_speculation_no_drafter_is_needed() -> None:
    found = find(method="plain")
    assert found.drafter is None
    assert found.target.name == TARGET.name


@pytest.mark.parametrize(
    ("goal", "layers", "method"),
    [
        ("latency", None, "ngram"),
        ("agent", 0, "ngram"),
        ("throughput", None, "plain"),
        ("throughput", 1, "mtp"),
    ],
)
def test_without_any_drafter_the_heads_draft_or_the_text_or_nothing(
    goal: Goal, layers: int | None, method: str
) -> None:
    target = TARGET.model_copy(update={"predicting_layers": layers})
    library = Library(lambda name, *, tokenizer: target)
    found = resolve(TARGET.name, make_options(goal=goal), "gb10", library)
    assert found.drafter is None
    assert found.method is not None
    assert found.method.value == method
    assert "slipstream models Qwen/Qwen3-8B" in found.method.because
    assert find(drafter=DRAFTER.name).method is None


def test_a_method_without_a_known_drafter_is_refused_with_what_to_type() -> None:
    with pytest.raises(InvalidInputError, match="no drafter of method dspark") as caught:
        find(method="dspark")
    assert "--method dspark --drafter NAME" in caught.value.hint


def test_a_method_takes_its_own_drafter_and_not_the_recipes() -> None:
    found = find(make_recipe(), index=INDEX, method="eagle3", offline=True)
    assert found.drafter is not None
    assert found.drafter.draft is not None
    assert found.drafter.draft.family == "eagle3"
    assert found.recipe is not None
    same = find(make_recipe(), index=INDEX, method="dflash")
    assert same.drafter is not None
    assert same.drafter.name == DRAFTER.name


@pytest.mark.parametrize("method", ["ngram", "suffix", "mtp", "plain"])
def test_a_method_that_needs_no_drafter_takes_none_from_a_recipe(method: str) -> None:
    found = find(make_recipe(), method=method)
    assert found.drafter is None
    assert found.method is not None
    assert found.method.value == method


def test_without_a_recipe_the_index_names_the_drafter_and_says_why() -> None:
    found = find(index=INDEX)
    assert found.drafter is not None
    assert found.drafter.name == DRAFTER.name
    assert found.found is not None
    assert found.found.drafter.source == "index"
    assert "z-lab made it for this target" in found.found.drafter.because


def test_a_target_is_read_once_for_its_candidates_and_its_plan() -> None:
    read: list[str] = []

    def count(name: str, *, tokenizer: bool) -> Checkpoint:
        read.append(name)
        return read_both(name, tokenizer=False)

    resolve(TARGET.name, make_options(), "gb10", Library(count, **INDEX))
    assert read.count(TARGET.name) == 1


def test_a_recipe_goes_before_the_index() -> None:
    found = find(make_recipe(drafter="Qwen/Qwen3-8B"), index=INDEX)
    assert found.drafter is not None
    assert found.drafter.name == "Qwen/Qwen3-8B"
    assert found.found is None


def test_offline_the_index_knows_both_and_says_so() -> None:
    found = find(index=INDEX, offline=True)
    assert found.drafter is not None
    assert found.drafter.draft is not None
    assert found.drafter.draft.block_size == 16
    assert found.target.hidden_size == 4096
    recalled = [note for note in found.notes if "is known from the index" in note]
    assert [note.split()[0] for note in recalled] == [TARGET.name, DRAFTER.name]


def test_candidates_that_may_not_be_taken_are_counted() -> None:
    parallel = publish("a/peagle", "peagle")
    found = find(index={"load_drafters": lambda: (parallel,)})
    assert found.method is not None
    assert found.method.value == "ngram"
    assert "of 1 (slipstream models" in found.method.because


def test_offline_the_recipes_facts_stand_in_and_say_so() -> None:
    known = make_recipe(target_facts=TARGET.model_copy(update={"source": "a card"}))
    found = find(known, offline=True)
    assert found.target.hidden_size == 4096
    assert any("a card" in note for note in found.notes)


def test_offline_a_drafter_without_facts_is_known_by_its_name() -> None:
    recipe = make_recipe(drafter="z-lab/Qwen3.8-27B-DFlash2")
    found = find(recipe, offline=True)
    assert found.drafter is not None
    assert found.drafter.draft is not None
    assert found.drafter.draft.family == "dflash2"
    assert found.drafter.hidden_size is None
    assert any("but its name" in note for note in found.notes)


def test_offline_without_a_recipe_the_hubs_error_is_shown() -> None:
    with pytest.raises(MissingPartError):
        find(drafter=DRAFTER.name, offline=True)
