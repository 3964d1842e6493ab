"""Goals are words or limits; everything else is refused with what it should have been."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import UsageError
from slipstream.tuning.goal import Goal, Limit, parse_goal


def parse_service(*words: str) -> Goal:
    """Read a goal as `size` does."""
    return parse_goal(words, aims=("throughput",), figures=("ttft", "tpot"))


@pytest.mark.parametrize(
    ("text", "seconds", "share"),
    [
        ("tpot<30ms@p95", 0.03, 0.95),
        (" TPOT <= 0.05 s @ p50 ", 0.05, 0.5),
        ("tpot<12.5ms@p99.9", 0.0125, 0.999),
    ],
)
def test_a_limit_is_read(text: str, seconds: float, share: float) -> None:
    goal = parse_goal([text])
    (limit,) = goal.limits
    assert (goal.name, limit.figure) == ("limits", "tpot")
    assert (limit.seconds, limit.share) == pytest.approx((seconds, share))


@given(some.integers(1, 10**6), some.integers(1, 99), some.sampled_from(("ttft", "tpot")))
def test_limits_are_written_as_they_are_read(milliseconds: int, percent: int, figure: str) -> None:
    goal = parse_service(f"{figure}<{milliseconds}ms@p{percent}", "tpot<30ms@p99")
    assert goal.limit == Limit.model_validate(
        {"figure": figure, "seconds": milliseconds * 1e-3, "share": percent / 100}
    )
    written = [word.strip() for word in str(goal).split(",")]
    assert str(parse_service(*written)) == str(goal)


def test_words_are_read() -> None:
    assert parse_goal(["latency"]) == Goal(name="latency")
    assert parse_goal(["Throughput"]) == parse_service("throughput") == Goal(name="throughput")
    assert str(parse_service("throughput")) == "throughput"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is unknown"),
        ("speed", "is unknown"),
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
        parse_goal([text])
    assert "tpot<30ms@p95" in refused.value.hint


@pytest.mark.parametrize("word", ["tpot<30ms", "ttft<0s@p95", "ttft<1s@p100", "fast", "latency"])
def test_a_fleet_is_not_sized_for_what_is_no_limit(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_service(word)
    assert "ttft<1s@p95" in refused.value.hint
