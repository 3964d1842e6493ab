"""A target finds its recipe and drafter, and facts come from files before recipes."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import GatedModelError, InvalidInputError, MissingPartError
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


OTHER = "other/drafter"
HERE = make_recipe(name="here")
ELSEWHERE = make_recipe(name="elsewhere", machines=("h100",))
SGLANG, LINKED = make_recipe(name="a", engine="sglang"), make_recipe(name="b", nodes=2)
NAMED = make_recipe(name="named", drafter=OTHER)


@pytest.mark.parametrize(
    ("recipes", "drafter", "chosen"),
    [
        ((ELSEWHERE, HERE), None, HERE),
        ((ELSEWHERE,), None, ELSEWHERE),
        ((SGLANG, LINKED, HERE), None, HERE),
        ((SGLANG, LINKED), None, LINKED),
        ((HERE, NAMED), OTHER, NAMED),
        ((HERE,), OTHER, None),
    ],
)
def test_the_recipe_is_for_this_machine_vllm_few_machines_and_the_named_drafter(
    recipes: tuple[Recipe, ...], drafter: str | None, chosen: Recipe | None
) -> None:
    for target in (TARGET.name, TARGET.name.lower()):
        assert choose_recipe(recipes, target, drafter, "gb10") == chosen


@pytest.mark.parametrize(
    ("recipes", "options", "drafter"),
    [
        ((HERE,), {}, DRAFTER.name),
        ((HERE,), {"method": "dflash", "index": INDEX}, DRAFTER.name),
        ((), {"index": INDEX}, DRAFTER.name),
        ((make_recipe(drafter=TARGET.name),), {"index": INDEX}, TARGET.name),
        ((HERE,), {"engine": ("--spec-method", "ngram")}, None),
        ((HERE,), {"method": "ngram"}, None),
        ((HERE,), {"method": "suffix"}, None),
        ((HERE,), {"method": "mtp"}, None),
        ((HERE,), {"method": "plain"}, None),
        ((), {"method": "plain"}, None),
        *(
            ((HERE,), {"drafter": "third/drafter", "engine": words}, TARGET.name)
            for words in (
                ("--speculative-config", f'{{"model": "{TARGET.name}"}}'),
                (f"--speculative-config.model={TARGET.name}",),
                ("--spec-model", TARGET.name),
            )
        ),
    ],
)
def test_the_drafter_is_the_engine_arguments_the_flags_the_recipes_or_the_indexs(
    recipes: tuple[Recipe, ...], options: dict[str, Any], drafter: str | None
) -> None:
    found = find(*recipes, **options)
    assert (found.drafter and found.drafter.name) == drafter
    assert found.target.name == TARGET.name
    requested = options.get("method")
    assert (found.method and found.method.value) == requested
    # The target's tokenizer is read only to be compared.
    assert found.target.tokenizer_sha256 == ("t" if drafter else None)


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


def test_candidates_that_may_not_be_taken_are_counted_and_a_method_without_any_refused() -> None:
    parallel = publish("a/peagle", "peagle")
    found = find(index={"load_drafters": lambda: (parallel,)})
    assert found.method is not None
    assert found.method.value == "ngram"
    assert "none of 1 known drafters can be used (slipstream models" in found.method.because
    with pytest.raises(InvalidInputError, match="no drafter of method dspark") as caught:
        find(method="dspark")
    assert "--method dspark --drafter NAME" in caught.value.hint


def test_a_method_takes_its_own_drafter_and_not_the_recipes() -> None:
    found = find(HERE, index=INDEX, method="eagle3", offline=True)
    assert found.drafter is not None
    assert found.drafter.draft is not None
    assert found.drafter.draft.family == "eagle3"
    assert found.recipe == HERE


def test_a_target_is_read_once_for_its_candidates_and_its_plan() -> None:
    read: list[str] = []

    def count(name: str, *, tokenizer: bool) -> Checkpoint:
        read.append(name)
        return read_both(name, tokenizer=False)

    resolve(TARGET.name, make_options(), "gb10", Library(count, **INDEX))
    assert read.count(TARGET.name) == 1


def test_the_index_says_why_it_names_a_drafter_and_knows_both_offline() -> None:
    found = find(index=INDEX, offline=True)
    assert found.found is not None
    assert found.found.drafter.source == "index"
    assert "z-lab made it for this target" in found.found.drafter.because
    assert found.drafter is not None
    assert found.drafter.draft is not None
    assert (found.drafter.draft.block_size, found.target.hidden_size) == (16, 4096)
    (note,) = found.notes
    assert f"{TARGET.name} and {DRAFTER.name} are from the index" in note


def test_offline_the_recipes_facts_stand_in_and_names_say_the_rest() -> None:
    facts = TARGET.model_copy(update={"source": "a card"})
    found = find(make_recipe(drafter="z-lab/Qwen3-DFlash2", target_facts=facts), offline=True)
    assert found.target.hidden_size == 4096
    assert found.drafter is not None
    assert found.drafter.draft is not None
    assert (found.drafter.draft.family, found.drafter.hidden_size) == ("dflash2", None)
    (note,) = found.notes
    assert f"z-lab/Qwen3-DFlash2 are from its name alone; {TARGET.name} are from recipe" in note


def test_a_model_of_the_index_that_the_hub_refuses_is_known_to_be_gated() -> None:
    def refuse(name: str, *, tokenizer: bool) -> Checkpoint:
        raise GatedModelError(f"{name} is gated", hint="set HF_TOKEN")

    found = resolve(TARGET.name, make_options(), "h100", Library(refuse, **INDEX))
    assert found.target.gated
    assert found.target.hidden_size == 4096


def test_offline_without_a_recipe_the_hubs_error_is_shown() -> None:
    with pytest.raises(MissingPartError):
        find(drafter=DRAFTER.name, offline=True)
