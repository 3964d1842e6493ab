"""Counts of drafts, added up over requests and turned into tokens per step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.steering.drafts import Drafts, find_variance, solve_acceptance


def test_tokens_per_step_include_the_targets_own_token() -> None:
    counts = Drafts(drafts=4, drafted=12, accepted=(3, 2, 1))
    assert counts.tokens_per_step == 1 + 6 / 4
    assert counts.acceptance_rate == 6 / 12
    assert counts.by_position == (0.75, 0.5, 0.25)


def test_without_drafts_nothing_is_known() -> None:
    counts = Drafts()
    assert counts.tokens_per_step is None
    assert counts.acceptance_rate is None
    assert counts.by_position == ()


def test_drafts_of_different_lengths_are_added_by_position() -> None:
    total = Drafts.total(
        [
            Drafts(drafts=2, drafted=2, accepted=(1,)),
            Drafts(drafts=1, drafted=3, accepted=(1, 1, 1)),
        ]
    )
    assert total == Drafts(drafts=3, drafted=5, accepted=(2, 1, 1))
    assert total.tokens_per_step == pytest.approx(1 + 4 / 3)


def test_the_variance_is_that_of_a_steps_tokens() -> None:
    # Half of the drafts have 0 and a quarter 1 or 2 accepted: mean 0.75, mean square 1.25.
    assert find_variance((0.5, 0.25)) == pytest.approx(1.25 - 0.75**2)
    assert find_variance((1.0, 1.0)) == 0


@given(rate=st.floats(0.02, 0.98), length=st.floats(1, 16))
def test_the_acceptance_of_a_token_does_not_depend_on_the_draft_length(
    rate: float, length: float
) -> None:
    whole = int(length)
    accepted = sum(rate**position for position in range(1, whole + 1))
    accepted += (length - whole) * rate ** (whole + 1)
    assert solve_acceptance(accepted, length) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize(("accepted", "length"), [(0, 7), (7, 7), (9, 7), (0, 0), (5, 0)])
def test_the_acceptance_of_a_token_is_a_share_whatever_was_counted(
    accepted: float, length: float
) -> None:
    assert 0 <= solve_acceptance(accepted, length) <= 1
