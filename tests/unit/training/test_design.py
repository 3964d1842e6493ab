"""A design follows the target's size and depth unless the user says otherwise, with reasons."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Layers, Weights
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.training.design import (
    Asked,
    Vocabulary,
    decide_design,
    design_of,
    find_mask_token,
    require_valid,
    spread_states,
)
from slipstream.training.settings import DrafterDesign
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.training.pieces import refusal

VOCABULARY = Vocabulary(size=151936, special=(151669, 151670), used=(151644, 151645))
SMALL = TARGET.model_copy(update={"weights": Weights(total_bytes=270_000_000)})
GOOD = DrafterDesign(
    layers=5,
    intermediate_size=12288,
    block_size=16,
    target_layer_ids=(2, 10, 18, 26, 34),
    mask_token_id=151669,
)


def decide(asked: Asked | None = None) -> tuple[DrafterDesign, dict[str, Decision]]:
    design, decisions = decide_design(TARGET, 12288, VOCABULARY, asked or Asked())
    return design, {decision.flag: decision for decision in decisions}


def refuse(**changes: object) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        require_valid(GOOD.model_copy(update=changes), TARGET)
    return caught.value


def test_a_large_target_gets_the_shape_of_the_published_drafters() -> None:
    design, decisions = decide()
    assert design == GOOD
    assert {decision.source for decision in decisions.values()} == {"checkpoint"}
    why = "the target has 8.59 B parameters, above one billion"
    assert decisions["--layers"].because == decisions["--block-size"].because == why


def test_a_small_target_gets_a_small_drafter() -> None:
    design, decisions = decide_design(SMALL, 1536, VOCABULARY, Asked())
    assert (design.layers, design.block_size, design.intermediate_size) == (3, 8, 1536)
    assert decisions[0] == Decision(
        flag="--layers",
        value="3",
        source="checkpoint",
        because="the target has 0.14 B parameters, below one billion",
    )


@pytest.mark.parametrize(("total_bytes", "layers"), [(2_000_000_000, 5), (1_999_999_998, 3)])
def test_a_billion_parameters_are_large(total_bytes: int, layers: int) -> None:
    target = TARGET.model_copy(update={"weights": Weights(total_bytes=total_bytes)})
    assert decide_design(target, 1, VOCABULARY, Asked())[0].layers == layers


@pytest.mark.parametrize(
    ("asked", "flag", "shown"),
    [
        (Asked(layers=2), "--layers", "2"),
        (Asked(block_size=6), "--block-size", "6"),
        (Asked(target_layer_ids=(3, 7)), "--layer-ids", "3 7"),
        (Asked(mask_token_id=5), "--mask-token-id", "5"),
        (Asked(intermediate_size=512), "--intermediate-size", "512"),
    ],
)
def test_what_was_asked_for_is_taken_and_says_so(asked: Asked, flag: str, shown: str) -> None:
    design, decisions = decide(asked)
    expected = Decision(flag=flag, value=shown, source="user", because="requested")
    assert decisions.pop(flag) == expected
    assert {decision.source for decision in decisions.values()} == {"checkpoint"}
    wished = asked.model_dump(exclude_none=True)
    assert design == GOOD.model_copy(update=wished)


def test_every_part_of_a_design_is_decided_and_explained() -> None:
    _, decisions = decide()
    assert [(flag, decision.value, decision.because) for flag, decision in decisions.items()][
        2:
    ] == [
        (
            "--layer-ids",
            "2 10 18 26 34",
            "spread from the second to the third last layer, as z-lab's drafters are",
        ),
        (
            "--mask-token-id",
            "151669",
            "the first token that neither text nor the chat template uses",
        ),
        ("--intermediate-size", "12288", "as in the target"),
    ]
    assert len(decisions) == len(DrafterDesign.model_fields) - 1  # The method comes first.


def test_an_eagle3_head_has_one_layer_three_states_and_no_mask() -> None:
    design, decisions = decide_design(SMALL, 1536, VOCABULARY, Asked(), "eagle3")
    assert design == DrafterDesign(
        method="eagle3",
        layers=1,
        intermediate_size=1536,
        block_size=6,
        target_layer_ids=(2, 18, 33),
        mask_token_id=None,
    )
    assert design.draft_tokens == 5
    assert [decision.flag for decision in decisions] == [
        "--layers",
        "--block-size",
        "--layer-ids",
        "--intermediate-size",
    ]
    require_valid(design, TARGET)


def test_what_an_eagle3_head_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(InvalidInputError) as caught:
        require_valid(GOOD.model_copy(update={"method": "eagle3"}), TARGET)
    assert caught.value.details == (
        "an EAGLE-3 head is trained with one layer, not 5",
        "vLLM reads 3 hidden states for an EAGLE-3 head, not 5",
        "EAGLE-3 has no mask token: it reads the tokens that it drafted",
    )


@pytest.mark.parametrize(
    ("method", "tokens"), [("dflash", 15), ("dflash2", 15), ("eagle3", 15), ("dspark", 16)]
)
def test_only_dspark_drafts_from_the_anchor_too(method: str, tokens: int) -> None:
    assert GOOD.model_copy(update={"method": method}).draft_tokens == tokens


def test_a_full_vocabulary_does_not_matter_to_who_names_the_mask() -> None:
    full = Vocabulary(size=10, special=(1,), used=(1,))
    design, _ = decide_design(TARGET, 1, full, Asked(mask_token_id=7))
    assert design.mask_token_id == 7


@pytest.mark.parametrize(
    ("layers", "ids"),
    [(36, (2, 10, 18, 26, 34)), (30, (2, 8, 15, 22, 28)), (12, (2, 4, 6, 8, 10)), (4, (2,))],
)
def test_states_are_spread_evenly(layers: int, ids: tuple[int, ...]) -> None:
    assert spread_states(layers) == ids


@given(some.integers(3, 200))
def test_spread_states_are_ones_that_the_target_has(layers: int) -> None:
    target = TARGET.model_copy(update={"layers": (Layers(kind="full", count=layers),)})
    ids = spread_states(layers)
    design = GOOD.model_copy(update={"target_layer_ids": ids})
    assert refusal(require_valid, design, target) is None
    assert len(ids) == 5 or layers < 8


@given(some.integers(12, 200))
def test_neighbouring_states_lie_about_as_far_apart(layers: int) -> None:
    ids = spread_states(layers)
    gaps = [after - before for before, after in pairwise(ids)]
    assert (ids[0], ids[-1]) == (2, layers - 2)
    assert max(gaps) - min(gaps) <= 1


def test_the_mask_is_the_first_special_token_that_nothing_uses() -> None:
    assert find_mask_token(Vocabulary(size=10, special=(8, 9, 1), used=(8, 1))) == 9


def test_a_vocabulary_without_a_free_token_is_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        find_mask_token(Vocabulary(size=10, special=(1, 2), used=(1, 2, 3)))
    assert caught.value.message == (
        "no token of the target's vocabulary is free to serve as the mask"
    )
    assert caught.value.hint == (
        "slipstream train TARGET --mask-token-id ID, a token that never occurs in your text"
    )


def test_a_warm_start_counts_layer_outputs_as_hidden_states() -> None:
    assert design_of(DRAFTER, 12288) == GOOD


def test_a_warm_start_takes_hidden_states_as_they_are() -> None:
    assert DRAFTER.draft is not None
    changes = {"layer_id_convention": "hidden-state", "target_layer_ids": (2, 18, 34)}
    draft = DRAFTER.draft.model_copy(update=changes)
    design = design_of(DRAFTER.model_copy(update={"draft": draft}), 1)
    assert design.target_layer_ids == (2, 18, 34)


@pytest.mark.parametrize("missing", ["draft", "target_layer_ids", "mask_token_id"])
def test_a_warm_start_from_what_says_too_little_is_refused(missing: str) -> None:
    assert DRAFTER.draft is not None
    draft = None if missing == "draft" else DRAFTER.draft.model_copy(update={missing: None})
    with pytest.raises(InvalidInputError) as caught:
        design_of(DRAFTER.model_copy(update={"draft": draft}), 12288)
    assert caught.value.message == (
        "z-lab/Qwen3-8B-DFlash-b16 is not a DFlash drafter that states its layers and mask token"
    )
    assert caught.value.hint == "slipstream models z-lab/Qwen3-8B-DFlash-b16"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"target_layer_ids": (10, 2)},
            "layer ids (10, 2) are not in rising order",
        ),
        (
            {"target_layer_ids": (2, 2)},
            "layer ids (2, 2) are not in rising order",
        ),
        (
            {"target_layer_ids": (0, 2)},
            "layer ids (0, 2) count hidden states; the target has those from 1 to 35",
        ),
        (
            {"target_layer_ids": (2, 36)},
            "layer ids (2, 36) count hidden states; the target has those from 1 to 35",
        ),
        (
            {"mask_token_id": 151936},
            "mask token 151936 is outside the vocabulary of 151936 tokens",
        ),
        (
            {"mask_token_id": -1},
            "mask token -1 is outside the vocabulary of 151936 tokens",
        ),
        (
            {"block_size": 1},
            "a block of 1 has no draft token",
        ),
    ],
)
def test_a_design_that_the_target_cannot_serve_is_refused(
    changes: dict[str, object], fault: str
) -> None:
    error = refuse(**changes)
    assert error.message == "this drafter cannot be trained for Qwen/Qwen3-8B"
    assert error.details == (fault,)
    assert error.hint == "slipstream train TARGET --dry-run shows what would be chosen"


@pytest.mark.parametrize(
    "changes", [{"target_layer_ids": (1, 35)}, {"mask_token_id": 0}, {"block_size": 2}]
)
def test_a_design_at_the_edge_is_allowed(changes: dict[str, object]) -> None:
    assert refusal(require_valid, GOOD.model_copy(update=changes), TARGET) is None


def test_all_faults_of_a_design_come_at_once() -> None:
    error = refuse(target_layer_ids=(40, 3), mask_token_id=-5, block_size=0)
    assert [detail.split()[0] for detail in error.details] == ["layer", "layer", "mask", "a"]
