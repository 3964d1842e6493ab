"""Requests add up by what they have in common, and what is unknown is not zero."""

import pytest

from slipstream.steering.ledger_summary import LedgerSummary, name_context, summarize
from tests.unit.steering.lines import make


def test_requests_add_up_by_kind_the_largest_first() -> None:
    lines = [
        make(kind="prose", tokens=10, steps=10, drafts=8, accepted=[2, 1]),
        make(tokens=30, steps=10, drafts=9, accepted=[8, 6, 1], seconds=3.0, first_seconds=0.1),
        make(tokens=60, steps=20, drafts=18, accepted=[10, 6], seconds=7.0, first_seconds=None),
    ]
    summary = summarize(lines, "kind")
    code, prose = summary.groups
    assert (code.name, code.requests, code.tokens, code.steps) == ("code", 2, 90, 30)
    assert (code.accepted, code.acceptance[0]) == ((18, 12, 1), 18 / 27)
    assert (code.token_share, code.tokens_per_step) == (0.9, 3.0)
    assert code.first_seconds == 0.1
    assert code.seconds_per_token == pytest.approx(9.9 / 89)
    assert (prose.name, prose.acceptance) == ("prose", (0.25, 0.125))
    assert (summary.total.requests, summary.total.accepted) == (3, (20, 13, 1))
    assert LedgerSummary.model_validate_json(summary.to_json()) == summary


def test_groups_are_what_was_asked_for() -> None:
    lines = [make(key=None), make(route="messages", prompt_tokens=20_000)]
    names = {
        by: [group.name for group in summarize(lines, by).groups]
        for by in ("key", "route", "context")
    }
    assert names == {
        "key": ["ann", "none"],
        "route": ["chat", "messages"],
        "context": ["0 to 1k", "16k to 64k"],
    }


def test_without_drafts_or_tokens_nothing_is_said() -> None:
    line = make(tokens=0, steps=0, drafts=0, drafted=0, accepted=[], first_seconds=None)
    total = summarize([line], "kind").total
    assert total.acceptance == ()
    assert (total.tokens_per_step, total.seconds_per_token, total.first_seconds) == (None,) * 3
    assert summarize([], "kind").groups == ()


def test_a_range_of_context_has_its_lower_bound_and_not_its_upper() -> None:
    names = [name_context(tokens) for tokens in (0, 1023, 1024, 16384, 65535, 65536)]
    assert names == ["0 to 1k", "0 to 1k", "1k to 4k", "16k to 64k", "16k to 64k", "64k on"]
