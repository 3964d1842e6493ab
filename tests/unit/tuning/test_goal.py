"""Goals are words or a limit; everything else is told what it should have been."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import UsageError
from slipstream.tuning.goal import Goal, Limit, parse_goal


@pytest.mark.parametrize(
    ("text", "seconds", "share"),
    [
        ("tpot<30ms@p95", 0.03, 0.95),
        (" TPOT <= 0.05 s @ p50 ", 0.05, 0.5),
        ("tpot<12.5ms@p99.9", 0.0125, 0.999),
    ],
)
def test_a_limit_is_read(text: str, seconds: float, share: float) -> None:
    goal = parse_goal(text)
    assert goal.name == "limit"
    assert goal.limit is not None
    assert goal.limit.seconds_per_token == pytest.approx(seconds)
    assert goal.limit.share == pytest.approx(share)


@given(some.integers(1, 10**6), some.integers(1, 99))
def test_any_time_and_percentile_are_read(milliseconds: int, percent: int) -> None:
    limit = parse_goal(f"tpot<{milliseconds}ms@p{percent}").limit
    assert limit == Limit(seconds_per_token=milliseconds * 1e-3, share=percent / 100)


def test_words_are_read() -> None:
    assert parse_goal("latency") == Goal(name="latency")
    assert parse_goal("Throughput") == Goal(name="throughput")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "none that a server can be tuned for"),
        ("speed", "none that a server can be tuned for"),
        ("ttft<200ms@p95", "not about the time per token"),
        ("tpot<30@p95", "lacks a unit"),
        ("tpot<30ms", "or a percentile"),
        ("tpot>30ms@p95", "lacks"),
        ("tpot<0ms@p95", "a time of 0"),
        ("tpot<30ms@p100", "outside 0 and 100"),
        ("tpot<30ms@p0", "outside 0 and 100"),
    ],
)
def test_what_is_no_goal_is_refused_with_one_that_is(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        parse_goal(text)
    assert "tpot<30ms@p95" in refused.value.hint
