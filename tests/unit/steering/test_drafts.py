"""Counts of drafts, added up over requests and turned into tokens per step."""

import pytest

from slipstream.steering.drafts import Drafts


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
