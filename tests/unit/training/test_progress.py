"""Long work says how far it is: now and then, and at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.training.progress import Ticker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def tick(*moments: tuple[float, int], total: int, note: str = "") -> list[str]:
    """Show work at (seconds since the start, how much is done)."""
    lines: list[str] = []
    clock = Clock()
    ticker = Ticker(lines.append, "states", unit="tokens", clock=clock)
    for seconds, done in moments:
        clock.now = 100 + seconds
        ticker.show(done, total, note)
    return lines


def test_nothing_is_said_within_twenty_seconds() -> None:
    assert tick((0, 0), (10, 50), (19.9, 99), total=1000) == []


def test_a_line_says_how_far_how_fast_and_how_much_longer() -> None:
    assert tick((0, 0), (20, 100), (30, 140), (40, 200), total=400) == [
        "states: 100 of 400 tokens, 5 tokens/s, 60 s left",
        "states: 200 of 400 tokens, 5 tokens/s, 40 s left",
    ]


def test_a_note_stands_before_the_time_that_is_left() -> None:
    (line,) = tick((0, 0), (20, 100), total=200, note="loss 2.5")
    assert line == "states: 100 of 200 tokens, 5 tokens/s, loss 2.5, 20 s left"


def test_the_end_is_always_told() -> None:
    assert tick((0, 0), (4, 8), total=8) == ["states: 8 of 8 tokens, 2 tokens/s"]


def test_what_was_done_before_counts_for_no_speed() -> None:
    (line,) = tick((0, 900), (20, 940), total=1000)
    assert line == "states: 940 of 1000 tokens, 2 tokens/s, 30 s left"


def test_work_that_was_done_already_has_no_speed() -> None:
    assert tick((0, 8), total=8) == ["states: 8 of 8 tokens"]


def test_work_that_stands_still_promises_nothing() -> None:
    assert tick((0, 3), (20, 3), total=8) == ["states: 3 of 8 tokens"]


@pytest.mark.parametrize(
    ("done", "total", "left"), [(20, 109, "89 s"), (20, 110, "2 min"), (2, 102, "17 min")]
)
def test_ninety_seconds_and_more_are_told_in_minutes(done: int, total: int, left: str) -> None:
    (line,) = tick((0, 0), (20, done), total=total)
    assert line.endswith(f", {left} left")


@pytest.mark.parametrize(
    ("done", "speed"),
    [
        (10, "0.5"),
        (666, "33.3"),
        (1998, "99.9"),
        (2000, "100"),
        (24_690, "1234"),
        (2 * 10**7, "1000000"),
    ],
)
def test_a_speed_is_a_number_that_people_read(done: int, speed: str) -> None:
    (line,) = tick((0, 0), (20, done), total=1 << 40)
    assert f", {speed} tokens/s," in line


@given(some.floats(0.1, 1e7))
def test_no_common_speed_has_an_exponent(rate: float) -> None:
    (line,) = tick((0, 0), (1000, round(rate * 1000)), total=1 << 50)
    assert "e+" not in line.partition(" tokens/s")[0]
