"""A design follows the target's size and depth unless the user says otherwise, with reasons."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Layers, Weights
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.training.design import decide_design, design_of, require_valid, spread_evenly
from slipstream.training.run import DrafterDesign, Method, TrainOptions
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.training.pieces import refusal

FREE = (151669, 151670)
SMALL = TARGET.model_copy(update={"weights": Weights(total_bytes=270_000_000)})
GOOD = DrafterDesign(
    layers=5,
    intermediate_size=12288,
    block_size=16,
    target_layer_ids=(2, 10, 18, 26, 34),
    mask_token_id=151669,
)
HEAD = DrafterDesign(
    method="eagle3",
    layers=1,
    intermediate_size=1536,
    block_size=6,
    target_layer_ids=(2, 18, 33),
    mask_token_id=None,
)


def decide(
    target: Any = TARGET, inner: int = 12288, method: Method = "dflash", **options: Any
) -> tuple[DrafterDesign, dict[str, Decision]]:
    wanted = TrainOptions(target="target", prompts=(), **options)
    design, decisions = decide_design(target, inner, FREE, wanted, method)
    return design, {decision.flag: decision for decision in decisions}


def refuse(**changes: object) -> InvalidInputError:
    with pytest.raises(InvalidInputError, match="cannot be trained for Qwen/Qwen3-8B") as caught:
        require_valid(GOOD.model_copy(update=changes), TARGET)
    return caught.value


def test_a_large_target_gets_the_shape_of_the_published_drafters() -> None:
    design, decisions = decide()
    assert design == GOOD
    assert {flag: decision.value for flag, decision in decisions.items()} == {
        "--layers": "5",
        "--block-size": "16",
        "--layer-ids": "2 10 18 26 34",
        "--mask-token-id": "151669",
        "--intermediate-size": "12288",
    }
    assert {decision.source for decision in decisions.values()} == {"checkpoint"}
    assert "8.59 B parameters, above" in decisions["--layers"].because


@pytest.mark.parametrize(
    ("name", "value", "flag", "shown"),
    [
        ("layers", 2, "--layers", "2"),
        ("block_size", 6, "--block-size", "6"),
        ("target_layer_ids", (3, 7), "--layer-ids", "3 7"),
        ("mask_token_id", 0, "--mask-token-id", "0"),
        ("intermediate_size", 512, "--intermediate-size", "512"),
    ],
)
def test_an_option_is_taken_as_the_users(name: str, value: Any, flag: str, shown: str) -> None:
    design, decisions = decide(**{name: value})
    expected = Decision(flag=flag, value=shown, source="user", because="requested")
    assert decisions.pop(flag) == expected
    assert {decision.source for decision in decisions.values()} == {"checkpoint"}
    assert design == GOOD.model_copy(update={name: value})


def test_an_eagle3_head_has_one_layer_three_states_and_no_mask() -> None:
    design, decisions = decide(SMALL, 1536, "eagle3")
    assert design == HEAD
    assert design.draft_tokens == 5
    assert "--mask-token-id" not in decisions
    assert refusal(require_valid, design, TARGET) is None


@pytest.mark.parametrize(
    ("method", "tokens"), [("dflash", 15), ("dflash2", 15), ("eagle3", 15), ("dspark", 16)]
)
def test_only_dspark_drafts_from_the_anchor_too(method: str, tokens: int) -> None:
    assert GOOD.model_copy(update={"method": method}).draft_tokens == tokens


def test_a_vocabulary_without_a_free_token_is_refused_unless_the_mask_is_named() -> None:
    options = TrainOptions(target="target", prompts=())
    with pytest.raises(InvalidInputError) as caught:
        decide_design(TARGET, 1, (), options)
    assert "--mask-token-id ID" in caught.value.hint
    named = options.model_copy(update={"mask_token_id": 7})
    assert decide_design(TARGET, 1, (), named)[0].mask_token_id == 7


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"weights": Weights(total_bytes=1_999_999_998)}, "layers", 3),
        ({"weights": Weights(total_bytes=1_999_999_998)}, "block_size", 8),
        ({"weights": Weights(total_bytes=2_000_000_000)}, "layers", 5),
        ({"weights": Weights(total_bytes=2_000_000_000)}, "block_size", 16),
        ({"layers": (Layers(kind="full", count=30),)}, "target_layer_ids", (2, 8, 15, 22, 28)),
        ({"layers": (Layers(kind="full", count=12),)}, "target_layer_ids", (2, 4, 6, 8, 10)),
        ({"layers": (Layers(kind="full", count=4),)}, "target_layer_ids", (2,)),
    ],
)
def test_the_shape_follows_the_targets_size_and_depth(
    change: dict[str, Any], field: str, value: Any
) -> None:
    assert getattr(decide(TARGET.model_copy(update=change))[0], field) == value


@given(some.integers(3, 200))
def test_spread_states_are_ones_that_the_target_has(layers: int) -> None:
    target = TARGET.model_copy(update={"layers": (Layers(kind="full", count=layers),)})
    design, _ = decide(target)
    assert refusal(require_valid, design, target) is None
    ids = design.target_layer_ids
    assert len(ids) == 5 or layers < 8
    gaps = [after - before for before, after in pairwise(ids)]
    assert layers < 12 or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("convention", "ids"), [("layer-output", (1, 17)), ("hidden-state", (2, 18))]
)
def test_a_warm_start_counts_layers_as_hidden_states(convention: str, ids: tuple[int, ...]) -> None:
    assert DRAFTER.draft is not None
    changes = {"layer_id_convention": convention, "target_layer_ids": ids}
    design = design_of(DRAFTER, DRAFTER.draft.model_copy(update=changes), 12288)
    assert design == GOOD.model_copy(update={"target_layer_ids": (2, 18)})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"target_layer_ids": (10, 2)}, "not in rising order"),
        ({"target_layer_ids": (2, 2)}, "not in rising order"),
        ({"target_layer_ids": (0, 2)}, "the target has those from 1 to 35"),
        ({"target_layer_ids": (2, 36)}, "the target has those from 1 to 35"),
        ({"mask_token_id": 151936}, "mask token 151936"),
        ({"mask_token_id": -1}, "mask token -1"),
        ({"block_size": 1}, "a block of 1"),
    ],
)
def test_a_design_that_the_target_cannot_serve_is_refused(
    changes: dict[str, object], fault: str
) -> None:
    (detail,) = refuse(**changes).details
    assert fault in detail


@pytest.mark.parametrize(
    "changes", [{"target_layer_ids": (1, 35)}, {"mask_token_id": 0}, {"block_size": 2}]
)
def test_a_design_at_the_edge_is_allowed(changes: dict[str, object]) -> None:
    assert refusal(require_valid, GOOD.model_copy(update=changes), TARGET) is None


def test_all_faults_of_a_design_come_at_once() -> None:
    error = refuse(target_layer_ids=(40, 3), mask_token_id=-5, block_size=0)
    assert [detail.split()[0] for detail in error.details] == ["layer", "layer", "mask", "a"]
    assert len(refuse(method="eagle3").details) == 3


@given(some.integers(0, 9), some.integers(10, 200))
def test_what_is_spread_is_sorted_distinct_and_from_the_first_to_the_last(
    first: int, last: int
) -> None:
    ids = spread_evenly(first, last)
    assert list(ids) == sorted(set(ids))
    assert (ids[0], ids[-1]) == (first, last)
