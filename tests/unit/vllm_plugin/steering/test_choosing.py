"""What a request verifies: its draft as far as it survives, a copy, or nothing."""

from random import Random

import numpy as np
import pytest

from slipstream.steering.state import KINDS
from slipstream.vllm_plugin.steering.choosing import (
    DraftChooser,
    Generating,
    find_most_constrained,
)
from slipstream.vllm_plugin.steering.survival import NO_PROBABILITY, Survival
from tests.unit.vllm_plugin.steering.recorded_engine import read_steps

CODE, PROSE = KINDS.index("code"), KINDS.index("prose")
ROW, CHANCES = [91, 92, 93], [0.99, 0.6, 0.3]
TEXT = [*range(10, 30), *range(10, 18)]


def choose(
    chooser: DraftChooser, tokens: list[int], price: float, row: list[int] = ROW, **more: object
) -> list[int]:
    named: dict[str, object] = {"entry": 0.0, "most": None, "whole": False, **more}
    chances = [CHANCES[: len(row)]] if row else None
    (draft,) = chooser.choose([Generating("a", tokens, 31)], [row], chances, price=price, **named)  # type: ignore[arg-type]
    return draft


@pytest.fixture
def chooser() -> DraftChooser:
    made = DraftChooser(Survival(7))
    made.begin("a", CODE, plain=False)
    return made


def test_a_draft_is_cut_where_its_survival_falls_below_the_price(chooser: DraftChooser) -> None:
    assert [len(choose(chooser, [1, 2], price)) for price in (0.02, 0.3, 0.6, 0.98)] == [3, 2, 1, 0]
    assert choose(chooser, [1, 2], 0.6, whole=True) == ROW


def test_a_repetition_is_copied_beyond_the_drafters_length(chooser: DraftChooser) -> None:
    draft = choose(chooser, TEXT, 0.05)
    assert draft[:12] == list(range(18, 30))
    assert chooser.see_step(["a"], [len(draft)], [12])[0] == [True]
    assert choose(chooser, TEXT, 0.05, most=4) == list(range(18, 22))
    assert choose(chooser, TEXT, 0.05, most=0) == ROW


def test_without_seeing_drafts_their_worth_is_learnt_from_a_part_of_a_large_step() -> None:
    chooser = DraftChooser(survival := Survival(7))
    names = [f"r{at}" for at in range(256)]
    for at, name in enumerate(names):
        chooser.begin(name, (CODE, PROSE)[at % 2], plain=False, proves=at < 8)
    for _ in range(20):
        # Prose is always right for two tokens, code never; one request has no draft.
        right = [2 * (at % 2) for at in range(256)]
        drafted = [9] * 255 + [0]
        assert (
            chooser.see_step([*names, "stranger"], [*drafted, 7], [*right, 7])[0] == [False] * 257
        )
    survival.settle()
    rates = survival.calibrate([CODE, PROSE], [1.0, 1.0], np.full((2, 7), np.nan))[0]
    assert rates[0, 0] < 0.1
    assert rates[1, 1] > 0.9
    assert rates[1, 2] < 0.1


def test_the_ledger_is_told_what_the_drafter_said_also_where_it_was_not_verified(
    chooser: DraftChooser,
) -> None:
    assert chooser.see_step(["a"], [0], [0]) == ([False], [], [])
    assert len(choose(chooser, [1, 2], 0.3)) == 2
    copied, expected, first = chooser.see_step(["a"], [2], [1])
    assert copied == [False]
    assert expected == [pytest.approx(0.99 + 0.99 * 0.6)]
    assert first == [pytest.approx(0.97, abs=0.03)]
    assert choose(chooser, TEXT, 0.05) != ROW
    assert chooser.see_step(["a"], [12], [12])[2] == [pytest.approx(0.97, abs=0.03)]
    # Once per draft: a step without one says nothing.
    assert chooser.see_step(["a", "stranger"], [0, 0], [0, 0])[1:] == ([0.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize("seats", [1, 4, 16])
def test_drafts_under_grammars_have_no_more_masks_than_vllm_has(seats: int) -> None:
    for constrained in range(1, seats + 1):
        most = find_most_constrained(seats, 7, constrained)
        assert most >= 7
        assert constrained * (1 + most) + seats - constrained <= seats * 8
    assert find_most_constrained(seats, 7, seats) == 7
    assert find_most_constrained(16, 7, 2) >= 31


def test_a_copy_that_the_drafter_agrees_with_is_held_for_surer(chooser: DraftChooser) -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2]
    assert choose(chooser, text, 0.05) == ROW
    assert choose(chooser, text, 0.05, row=[3, 92, 93])[:3] == [3, 4, 5]


def test_copies_are_learnt_to_be_wrong_without_being_verified(chooser: DraftChooser) -> None:
    chance, tokens = Random(3), [7, 8] * 4
    for _ in range(300):
        tokens = [*tokens, chance.randrange(100, 10_000), 7, 8]
        choose(chooser, tokens, 0.9, row=[])
    before = DraftChooser(Survival(7)).rates.rate(2, agrees=None)
    assert chooser.rates.rate(2, agrees=None) < 0.3 * before


def test_where_all_copy_the_drafter_is_not_needed(chooser: DraftChooser) -> None:
    long = [*range(60), *range(40)]
    choose(chooser, long, 0.05, row=[])
    assert chooser.copies_all == 1
    chooser.begin("b", CODE, plain=False)
    chooser.choose(
        [Generating("a", long, 31), Generating("b", [1, 2], 31)],
        [[], []],
        None,
        price=0.05,
        entry=0.0,
        most=None,
        whole=False,
    )
    assert chooser.copies_all == 0


def test_a_plain_request_verifies_nothing_and_others_do(chooser: DraftChooser) -> None:
    chooser.begin("b", CODE, plain=True)
    drafts = chooser.choose(
        [Generating("a", [1, 2], 31), Generating("b", TEXT, 31)],
        [ROW, ROW],
        [CHANCES] * 2,
        price=0.1,
        entry=0.0,
        most=None,
        whole=False,
    )
    assert [len(draft) > 0 for draft in drafts] == [True, False]


def test_little_to_gain_is_not_worth_the_fixed_part_of_verifying(chooser: DraftChooser) -> None:
    assert choose(chooser, [1, 2], 0.1, entry=0.5) == ROW
    assert choose(chooser, [1, 2], 0.1, entry=3.0) == []
    assert choose(chooser, [1, 2], 0.1, entry=3.0, whole=True) == ROW


def test_zeros_where_the_drafter_cannot_go_on_are_no_draft(chooser: DraftChooser) -> None:
    choose(chooser, [1, 2], 0.1)
    (draft,) = chooser.choose(
        [Generating("a", [1, 2], 31)],
        [[0] * 7],
        None,
        price=0.0,
        entry=0.0,
        most=None,
        whole=False,
    )
    assert draft == []


def test_a_request_past_the_drafters_window_verifies_less_and_less(chooser: DraftChooser) -> None:
    lengths = []
    for _ in range(40):
        draft = choose(chooser, [1, 2], 0.2)
        chooser.see_step(["a"], [len(draft)], [0])
        lengths.append(len(draft))
    assert lengths[0] == 2
    assert lengths[-1] == 0
    chooser.begin("a", CODE, plain=False)
    assert len(choose(chooser, [1, 2], 0.2)) > 0


def test_recorded_drafts_survive_as_often_as_is_said_of_them() -> None:
    survival = Survival(7)
    names = {"code": CODE, "prose": PROSE}
    drafts = [
        draft
        for step in read_steps()
        for draft in step.drafts
        if draft.kind in names and len(draft.chances) == 7 and draft.verified
    ]
    half = len(drafts) // 2
    for draft in drafts[:half]:
        _, bins = survival.calibrate([names[draft.kind]], [1.0], np.array([draft.chances]))
        verified, accepted = np.array([draft.verified]), np.array([draft.accepted])
        survival.learn(np.array([names[draft.kind]]), bins, verified, accepted)
    survival.settle()
    for kind, number in names.items():
        rest = [draft for draft in drafts[half:] if draft.kind == kind]
        chances = np.array([draft.chances for draft in rest])
        said, _ = survival.calibrate([number] * len(rest), [1.0] * len(rest), chances)
        seen = np.array([[draft.right > place for place in range(7)] for draft in rest])
        assert said.mean(0) == pytest.approx(seen.mean(0), abs=0.05)


def test_a_drafter_that_says_nothing_is_judged_by_position() -> None:
    survival = Survival(3)
    one = np.array([CODE])
    for accepted in [3, 1, 0, 0] * 50:
        survival.learn(one, np.full((1, 3), NO_PROBABILITY), np.array([3]), np.array([accepted]))
    survival.settle()
    gains = survival.weigh(0.0)[1]
    assert np.diff(gains) == pytest.approx([0.5, 0.25, 0.25], abs=0.05)
