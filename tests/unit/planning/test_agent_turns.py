"""The arithmetic of an agent's turn."""

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from slipstream.planning.agent_turns import Course, Turn, count_seconds, find_break_even, rank

speeds = st.floats(min_value=0.1, max_value=1e5)
turns = st.builds(
    Turn,
    prompt_tokens=st.integers(1, 1_000_000),
    cached_share=st.floats(0, 1),
    answer_tokens=st.integers(1, 100_000),
)


def make_courses(prefill: float, drafted: float, plain: float) -> tuple[Course, Course]:
    return (
        Course("drafted", prefill, drafted, cached=False),
        Course("plain", prefill, plain, cached=True),
    )


def test_the_published_turn_is_counted_as_published() -> None:
    turn = Turn(18_000, 0.95, 500)
    drafted, mtp = make_courses(1440, 24.3, 19.7)
    assert round(count_seconds(turn, drafted), 1) == 33.1
    assert round(count_seconds(turn, mtp), 1) == 26.0
    assert rank(turn, (drafted, mtp)) == (mtp, drafted)


@given(turns, speeds, speeds, speeds)
def test_drafts_win_from_the_break_even_on(
    turn: Turn, prefill: float, drafted: float, plain: float
) -> None:
    fast, cached = make_courses(prefill, drafted, plain)
    even = find_break_even(turn, fast, cached)
    if even is None:
        assert drafted <= plain
        assert count_seconds(turn, fast) >= count_seconds(turn, cached)
        return
    longer = Turn(turn.prompt_tokens, turn.cached_share, int(even * 1.01) + 1)
    assert count_seconds(longer, fast) <= count_seconds(longer, cached) * (1 + 1e-9)
    shorter = Turn(turn.prompt_tokens, turn.cached_share, int(even * 0.99))
    assert count_seconds(shorter, fast) >= count_seconds(shorter, cached) * (1 - 1e-9)


@given(turns, speeds, speeds, speeds, st.floats(0, 1))
def test_a_larger_cached_share_never_speaks_for_drafts(
    turn: Turn, prefill: float, drafted: float, plain: float, share: float
) -> None:
    fast, cached = make_courses(prefill, drafted, plain)
    low, high = sorted((turn.cached_share, share))
    losses = [
        count_seconds(one, fast) - count_seconds(one, cached)
        for one in (
            Turn(turn.prompt_tokens, low, turn.answer_tokens),
            Turn(turn.prompt_tokens, high, turn.answer_tokens),
        )
    ]
    assert losses[0] <= losses[1] + 1e-6 * abs(losses[1]) + 1e-9


@given(turns, speeds, speeds, speeds, st.floats(0.01, 100))
def test_only_the_ratios_of_the_speeds_decide(
    turn: Turn, prefill: float, drafted: float, plain: float, faster: float
) -> None:
    one = make_courses(prefill, drafted, plain)
    other = make_courses(prefill * faster, drafted * faster, plain * faster)
    for before, after in zip(one, other, strict=True):
        assert isclose(count_seconds(turn, before), count_seconds(turn, after) * faster)
