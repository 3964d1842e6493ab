"""Candidates are found in three places, compared with the target, and ranked by evidence."""

from collections.abc import Callable

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.hub import HubDrafter
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.planning.drafters.candidates import (
    Candidate,
    DrafterList,
    list_candidates,
    match_target,
)
from slipstream.planning.drafters.library import Library
from slipstream.recipes.recipe import Evidence, PublishedDrafter, Recipe
from tests.unit.planning.pieces import DRAFTER, TARGET, make_recipe

EVIDENCE = Evidence(
    by="a", source="b", hardware="c", engine_version="0.32.0", workload="code", tokens_per_s=1.0
)


def publish(drafter: str | None, method: str = "dflash", **changes: object) -> PublishedDrafter:
    fields = {"target": TARGET.name, "maker": (drafter or "maker/x").split("/")[0], **changes}
    return PublishedDrafter.model_validate(
        {"drafter": drafter, "method": method, "sources": ("somewhere public",), **fields}
    )


def read_from(*checkpoints: Checkpoint) -> Callable[..., Checkpoint]:
    known = {checkpoint.name: checkpoint for checkpoint in checkpoints}

    def read(name: str, *, tokenizer: bool) -> Checkpoint:
        if name not in known:
            raise MissingPartError(f"{name} is not here", hint="fetch it")
        return known[name]

    return read


def rename(drafter: str, **changes: object) -> Checkpoint:
    return DRAFTER.model_copy(update={"name": drafter, **changes})


def find(
    *published: PublishedDrafter,
    target: Checkpoint = TARGET,
    files: tuple[Checkpoint, ...] = (),
    recipes: tuple[Recipe, ...] = (),
    listed: tuple[HubDrafter, ...] | None = None,
    machine: str = "gb10",
) -> DrafterList:
    library = Library(
        read_from(*files),
        lambda name: recipes,
        lambda: published,
        search=None if listed is None else lambda names: listed,
    )
    return list_candidates(target, machine, library)


def names(found: DrafterList) -> list[str | None]:
    return [candidate.drafter for candidate in found.candidates]


def only(found: DrafterList) -> Candidate:
    (candidate,) = found.candidates
    return candidate


@pytest.mark.parametrize(
    ("made_for", "target", "bases", "match"),
    [
        ("Qwen/Qwen3-8B", "qwen/qwen3-8b", (), "exact"),
        ("Qwen/Qwen3-8B", "a/tuned", ("Qwen/Qwen3-8B",), "base"),
        ("Qwen/Qwen3-8B", "a/Qwen3-8B-FP8", (), "name"),
        ("Qwen/Qwen3-8B", "a/tuned", ("unsloth/Qwen3-8B",), "name"),
        ("Qwen/Qwen3-8B", "a/tuned", (), None),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", (), None),
    ],
)
def test_a_target_is_matched_by_name_base_and_build(
    made_for: str, target: str, bases: tuple[str, ...], match: str | None
) -> None:
    assert match_target(made_for, target, bases) == match


def test_evidence_here_goes_before_evidence_elsewhere_before_fit_before_maker() -> None:
    here = make_recipe(name="here", drafter="a/here", evidence=(EVIDENCE,))
    elsewhere = make_recipe(
        name="there", drafter="b/there", machines=("h100",), evidence=(EVIDENCE,), target="x/y"
    )
    unmeasured = make_recipe(name="idle", drafter="e/idle", target="x/y")
    drafters = ("e/idle", "d/plain", "c/fits", "b/there", "a/here", "Qwen/own")
    found = find(
        *map(publish, drafters),
        files=(rename("c/fits"),),
        recipes=(here, elsewhere, unmeasured),
    )
    assert names(found) == ["a/here", "b/there", "c/fits", "Qwen/own", "d/plain", "e/idle"]
    assert found.chosen == "a/here"
    assert found.candidates[0].why.endswith("measured on gb10 (recipe here)")
    assert found.candidates[1].why.endswith("measured elsewhere (recipe there)")
    assert found.candidates[-1].why.endswith("not measured in the catalogue")


def facts(drafter: str, **changes: object) -> dict[str, object]:
    return {"name": drafter, "source": "a card", "draft": {"family": "dflash"}, **changes}


INCOMPLETE = TARGET.model_copy(update={"complete": False})


@pytest.mark.parametrize(
    ("entry", "files", "target", "verdict", "because"),
    [
        (publish("a/b"), (rename("a/b"),), TARGET, "fits", "agree"),
        (publish("a/b"), (rename("a/b", hidden_size=2048),), TARGET, "does not fit", "2048"),
        (publish("a/b"), (rename("a/b", weights=None),), TARGET, "does not fit", "safetensors"),
        (publish("a/b"), (), TARGET, "cannot tell", "no local files"),
        (publish("a/b"), (rename("a/b"),), INCOMPLETE, "cannot tell", "the target's files"),
        # Facts can rule a drafter out, but not in.
        (publish("a/b", facts=facts("a/b", hidden_size=64)), (), TARGET, "does not fit", "64"),
        (publish("a/b", facts=facts("a/b")), (), TARGET, "cannot tell", "published facts agree"),
    ],
)
def test_the_verdict_is_the_pair_checks(
    entry: PublishedDrafter,
    files: tuple[Checkpoint, ...],
    target: Checkpoint,
    verdict: str,
    because: str,
) -> None:
    candidate = only(find(entry, files=files, target=target))
    assert candidate.verdict == verdict
    assert because in candidate.because


def test_what_does_not_fit_stands_last_and_what_agrees_first() -> None:
    good, bad = (
        publish(name, facts=facts(name, hidden_size=size))
        for name, size in (("a/good", 4096), ("a/bad", 64))
    )
    assert names(find(publish("a/a"), bad, good)) == ["a/good", "a/a", "a/bad"]


def test_a_drafter_with_broken_files_does_not_fit() -> None:
    def read(name: str, *, tokenizer: bool) -> Checkpoint:
        raise InvalidInputError("config.json is not JSON", hint="fetch it again")

    library = Library(read, load_drafters=lambda: (publish("a/broken"),))
    found = list_candidates(TARGET, "gb10", library)
    assert (only(found).verdict, found.chosen) == ("does not fit", None)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("eagle", "--method eagle --drafter a/b"),
        ("mtp", "--method mtp --drafter a/b"),
        ("draft_model", "--method draft_model --drafter a/b"),
        (None, "--method mtp"),  # heads in the target
        (
            "peagle",
            '-- --speculative-config \'{"method": "eagle3", "parallel_drafting": true, '
            '"model": "a/b", "num_speculative_tokens": 5}\'',
        ),
    ],
)
def test_a_method_that_plan_does_not_choose_is_named_with_its_command(
    method: str | None, words: str
) -> None:
    drafter = "a/b" if method else None
    found = find(publish(drafter, method or "mtp", draft_length=5))
    assert (found.chosen, only(found).drafter) == (None, drafter)
    own = "part of the target; `plan` uses it if no drafter fits"
    assert (
        only(found).obstacle == (f"its method, {method}, is used only on request", own)[not method]
    )
    assert only(found).command == f"slipstream plan Qwen/Qwen3-8B {words}"


def test_a_block_in_one_pass_goes_before_a_token_in_each_and_dflash2_needs_a_gpu() -> None:
    both = (publish("a/eagle", "eagle3"), publish("z/flash2", "dflash2"))
    two = rename("z/flash2", draft=DraftPart(family="dflash2", mask_token_id=1, block_size=8))
    on_gpu = find(*both, files=(two,))
    assert on_gpu.chosen == "z/flash2"
    on_cpu = find(*both, files=(two,), machine="cpu")
    assert on_cpu.chosen == "a/eagle"
    assert "needs vLLM's V2 runner" in str(on_cpu.candidates[0].obstacle)


def test_a_drafter_for_another_build_is_named_behind_one_for_this_target() -> None:
    here = make_recipe(name="here", drafter="a/for-fp8", evidence=(EVIDENCE,))
    for_fp8 = publish("a/for-fp8", target=f"{TARGET.name}-FP8")
    found = find(for_fp8, publish("b/for-all"), recipes=(here,))
    assert names(found) == ["b/for-all", "a/for-fp8"]
    assert found.candidates[1].obstacle == "trained for another build, Qwen/Qwen3-8B-FP8"
    build = TARGET.model_copy(update={"name": "Qwen/Qwen3-8B-FP8"})
    assert find(for_fp8, publish("b/for-all"), target=build).chosen == "a/for-fp8"


def test_a_base_model_is_followed_to_its_own_base_and_not_in_circles() -> None:
    build = TARGET.model_copy(update={"name": "c/build", "base_models": ("b/tuned",)})
    tuned = TARGET.model_copy(update={"name": "b/tuned", "base_models": (TARGET.name,)})
    found = find(publish("a/b"), target=build, files=(tuned,))
    assert found.base_models == ("b/tuned", TARGET.name)
    assert only(found).match == "base"
    circle = tuned.model_copy(update={"base_models": ("c/build",)})
    assert find(target=build, files=(circle,)).base_models == ("b/tuned",)


def test_a_users_own_recipe_is_a_candidate_without_an_index_entry() -> None:
    own = make_recipe(drafter="./mine", drafter_facts=DRAFTER, evidence=(EVIDENCE,))
    found = find(recipes=(own,), files=(rename("./mine"),))
    assert (only(found).found, only(found).verdict) == ("recipe", "fits")
    assert found.chosen == "./mine"


def hub(name: str, **changes: object) -> HubDrafter:
    fields = {"method": "dflash", "base_models": (TARGET.name,), "licence": None, "has_code": False}
    return HubDrafter(name=name, **{**fields, **changes})  # type: ignore[arg-type]


def test_the_index_goes_before_the_hub_and_a_drafter_is_listed_once() -> None:
    files = (rename("a/indexed"), rename("b/listed"))
    found = find(publish("a/indexed"), files=files, listed=(hub("b/listed"), hub("A/Indexed")))
    assert names(found) == ["a/indexed", "b/listed"]
    assert found.hub == "searched: 2 drafters listed"


@pytest.mark.parametrize(
    ("listed", "obstacle"),
    [
        (hub("b/x"), "known from the hub only"),
        (hub("b/fits", has_code=True), "its repository contains code"),
        (hub("b/fits", base_models=("other/model",)), "it does not name this target as its base"),
        (hub("b/fits", base_models=()), "it does not name this target as its base"),
    ],
)
def test_a_stranger_on_the_hub_is_taken_only_if_it_names_the_target_and_fits(
    listed: HubDrafter, obstacle: str
) -> None:
    found = find(files=(rename("b/fits"),), listed=(listed,))
    assert str(only(found).obstacle).startswith(obstacle)
    assert find(files=(rename("b/fits"),), listed=(hub("b/fits"),)).chosen == "b/fits"


def test_of_what_strangers_wrote_little_is_read_and_nothing_reaches_the_terminal_raw() -> None:
    hostile = rename("b/fits", draft=None, architecture="\x1b[2J" + "x" * 5000)
    because = only(find(files=(hostile,), listed=(hub("b/fits"),))).because
    assert because.isprintable()
    assert len(because) < 500
    assert len(find(listed=tuple(hub(f"b/{at}") for at in range(100))).candidates) == 8
