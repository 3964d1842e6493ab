"""The guard stops an engine in time on a machine with unified memory, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.hardware import load_host
from slipstream.serving.supervision.watching.watchdog import Alarm, MemoryGuard, guard_host

GIB = 1 << 30


def tell(gib: float) -> str:
    """Write what the kernel says, as it says it."""
    return (
        "MemTotal:       125513688 kB\n"
        "MemFree:          1028264 kB\n"
        f"MemAvailable:   {int(gib * 1024 * 1024)} kB\n"
        "Buffers:           12044 kB\n"
    )


def watch(*looks: tuple[float, float]) -> list[Alarm | None]:
    """Look at (seconds, GiB available) in turn."""
    guard = MemoryGuard(unified=True)
    return [guard.look(tell(gib), at) for at, gib in looks]


@pytest.mark.parametrize(
    ("looks", "alarm"),
    [
        pytest.param([(0, 90)], False, id="plenty"),
        pytest.param([(0, 6)], False, id="just enough"),
        pytest.param([(0, 5.9)], True, id="too little at the first look"),
        pytest.param([(0, 90), (1, 20)], False, id="a fast fall far from the ground"),
        pytest.param([(0, 17), (1, 14.9)], True, id="a fast fall near it"),
        pytest.param([(0, 16), (1, 14.5)], False, id="a slow fall near it"),
        pytest.param([(0, 18), (2, 14.5)], False, id="the same fall in twice the time"),
        pytest.param([(0, 14), (0.1, 12)], False, id="a fall too short to be told from noise"),
        pytest.param([(0, 14), (0.1, 5)], True, id="too little, however fast it came"),
        pytest.param([(0, 14), (0.5, 13), (1, 11.5)], True, id="looks in between hide nothing"),
        pytest.param([(0, 8), (1, 12)], False, id="a rise"),
    ],
)
def test_the_guard_stops_what_would_freeze_the_machine(
    looks: list[tuple[float, float]], alarm: bool
) -> None:
    assert (watch(*looks)[-1] is not None) is alarm


def test_the_fall_that_froze_a_spark_is_stopped_with_memory_to_spare() -> None:
    """vllm#56824: from 29.0 to 6.3 GiB in 11 s."""
    alarms = watch(*((second, 29 - second * 22.7 / 11) for second in range(12)))
    first = next(alarm for alarm in alarms if alarm is not None)
    assert first.available_bytes > 14 * GIB
    assert first.reason == "14.6 GiB of memory are left, and 2.1 GiB go every second"


def test_an_alarm_says_what_is_left() -> None:
    alarm = watch((0, 5.5))[0]
    assert alarm == Alarm(int(5.5 * GIB), "5.5 GiB of memory are left, under 6.0 GiB")


def test_memory_that_is_not_unified_is_not_guarded() -> None:
    assert MemoryGuard(unified=False).look(tell(0.1), 0) is None
    assert guard_host(load_host("gb10")) == MemoryGuard(unified=True)
    assert guard_host(load_host("h100")) == MemoryGuard(unified=False)
    assert guard_host(load_host("cpu-server")) == MemoryGuard(unified=False)


def test_a_figure_that_the_kernel_does_not_give_is_no_alarm() -> None:
    assert MemoryGuard(unified=True).look("MemTotal: 1 kB\n", 0) is None


@given(some.lists(some.floats(15, 120), max_size=20))
def test_above_the_watched_limit_nothing_is_stopped(levels: list[float]) -> None:
    assert set(watch(*enumerate(levels))) <= {None}


@given(some.lists(some.floats(6, 120), min_size=2, max_size=20))
def test_a_slow_fall_is_stopped_at_the_limit_only(levels: list[float]) -> None:
    gentle = sorted(levels, reverse=True)
    spaced = [(60.0 * index, level) for index, level in enumerate(gentle)]
    assert set(watch(*spaced)) == {None}
    assert watch(*spaced, (60.0 * len(gentle), 5.99))[-1] is not None
