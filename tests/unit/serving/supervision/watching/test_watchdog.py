"""Ready is what generates; stuck is what has been silent for too long and fails its probes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.hardware import load_host
from slipstream.serving.supervision.watching.watchdog import (
    EngineObservation,
    MemoryGuard,
    assess,
    guard_host,
    should_probe,
)

NOW = 10_000.0
seconds = some.floats(0, 5000)
observations = some.builds(
    EngineObservation,
    now=some.just(NOW),
    in_flight=some.integers(0, 64),
    last_token_at=some.none() | seconds.map(lambda ago: NOW - ago),
    last_good_generation_at=some.none() | seconds.map(lambda ago: NOW - ago),
    failed_probes=some.integers(0, 9),
    longest_prompt_tokens=some.integers(0, 131072),
    prefill_tokens_per_s=some.none() | some.floats(1, 20000),
)


def see(
    *,
    in_flight: int = 1,
    token: float | None = None,
    good: float | None = None,
    failed: int = 0,
    prompt: int = 0,
    rate: float | None = 1000,
) -> EngineObservation:
    """Make an observation; tokens and generations are given in seconds ago."""
    return EngineObservation(
        now=NOW,
        in_flight=in_flight,
        last_token_at=None if token is None else NOW - token,
        last_good_generation_at=None if good is None else NOW - good,
        failed_probes=failed,
        longest_prompt_tokens=prompt,
        prefill_tokens_per_s=rate,
    )


@pytest.mark.parametrize(
    ("seen", "ready", "stuck"),
    [
        pytest.param(see(), False, False, id="nothing generated yet"),
        pytest.param(see(failed=9), False, False, id="and a start has its own time limit"),
        pytest.param(see(token=5), True, False, id="tokens flow"),
        pytest.param(see(token=5, failed=2), True, False, id="tokens flow, whatever probes did"),
        pytest.param(see(token=30), True, False, id="thirty seconds are allowed"),
        pytest.param(see(token=31), False, False, id="and not one more"),
        pytest.param(see(token=900, good=8), True, False, id="a probe came back"),
        pytest.param(see(token=15, failed=1), True, False, id="one failed probe is chance"),
        pytest.param(see(token=15, failed=2), False, False, id="two are not"),
        pytest.param(see(token=60, failed=2), False, False, id="a minute is allowed"),
        pytest.param(see(token=61, failed=2), False, True, id="and not one second more"),
        pytest.param(see(token=61, failed=1), False, False, id="unless a probe may yet come"),
        pytest.param(see(token=61, failed=2, in_flight=0), False, True, id="frozen while idle"),
        pytest.param(see(token=45, prompt=50_000), True, False, id="a long prompt is read"),
        pytest.param(see(token=149, failed=2, prompt=50_000), False, False, id="for long"),
        pytest.param(see(token=151, failed=2, prompt=50_000), False, True, id="not for ever"),
        pytest.param(see(token=100, prompt=50_000, rate=None), True, False, id="unknown rate"),
        pytest.param(see(token=45, prompt=50_000, in_flight=0), False, False, id="prompt gone"),
    ],
)
def test_an_engine_is_judged_by_what_it_generates(
    seen: EngineObservation, ready: bool, stuck: bool
) -> None:
    health = assess(seen)
    assert (health.ready, health.stuck) == (ready, stuck)


@pytest.mark.parametrize(
    ("seen", "last_probe", "probe"),
    [
        pytest.param(see(in_flight=0), None, True, id="nothing is known"),
        pytest.param(see(token=9), None, False, id="tokens flow"),
        pytest.param(see(token=900, good=9, in_flight=0), 9.0, False, id="just probed"),
        pytest.param(see(token=900, good=10, in_flight=0), 10.0, True, id="idle"),
        pytest.param(see(token=900, good=40, in_flight=0), 9.0, False, id="at most every 10 s"),
        pytest.param(see(token=15), 30.0, True, id="silent with requests in flight"),
        pytest.param(see(token=15, prompt=50_000), 30.0, False, id="a long prompt is read"),
        pytest.param(see(token=51, prompt=50_000), 30.0, True, id="for too long"),
    ],
)
def test_only_an_engine_that_says_nothing_is_probed(
    seen: EngineObservation, last_probe: float | None, probe: bool
) -> None:
    assert should_probe(seen, None if last_probe is None else NOW - last_probe) is probe


@given(observations)
def test_a_stuck_engine_was_silent_for_a_minute_and_failed_twice(seen: EngineObservation) -> None:
    health = assess(seen)
    silent = seen.silent_seconds
    assert not (health.ready and health.stuck)
    if health.stuck:
        assert silent is not None
        assert silent > 60
        assert seen.failed_probes >= 2


@given(observations, seconds)
def test_a_token_now_heals_everything(seen: EngineObservation, later: float) -> None:
    health = assess(replace(seen, now=NOW + later, last_token_at=NOW + later))
    assert health.ready
    assert not health.stuck


@given(observations)
def test_an_engine_that_froze_is_replaced_in_the_end(seen: EngineObservation) -> None:
    frozen = replace(seen, now=NOW + 2_000_000, failed_probes=2)
    assert assess(frozen).stuck == (seen.silent_seconds is not None)
    assert should_probe(frozen, NOW)


@given(observations, some.integers(0, 131072))
def test_a_longer_prompt_never_makes_an_engine_look_worse(
    seen: EngineObservation, more: int
) -> None:
    longer = assess(replace(seen, longest_prompt_tokens=seen.longest_prompt_tokens + more))
    assert longer.ready >= assess(seen).ready
    assert longer.stuck <= assess(seen).stuck


def tell(gib: float) -> str:
    """Write what the kernel says, as it says it."""
    return (
        "MemTotal:       125513688 kB\n"
        "MemFree:          1028264 kB\n"
        f"MemAvailable:   {int(gib * 1024 * 1024)} kB\n"
        "Buffers:           12044 kB\n"
    )


def watch(*looks: tuple[float, float]) -> list[str | None]:
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
    assert first == "14.6 GiB of memory are left, and 2.1 GiB more are used every second"
    assert watch((0, 5.5)) == ["5.5 GiB of memory are left, under 6.0 GiB"]


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
