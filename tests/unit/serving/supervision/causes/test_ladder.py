"""A crashed engine starts again, later each time; then with less; and in the end no more."""

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Weights
from slipstream.hardware import load_host
from slipstream.planning.plan import Decision, LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from slipstream.serving.supervision.causes.diagnosis import Cause
from slipstream.serving.supervision.causes.ladder import (
    Crash,
    Rung,
    decide_takeover_wait,
    decide_wait,
    may_restart,
    step_down,
)
from tests.unit.planning.pieces import DRAFTER, TARGET

CAUSES: tuple[Cause, ...] = get_args(Cause)
SPECULATION = "--speculative-config"
LENGTH = f"{SPECULATION}.num_speculative_tokens"
SCHEDULE = f"{LENGTH}_per_batch_size"
OUT_OF_MEMORY: tuple[Cause, ...] = ("out-of-memory",) * 5
SMALL = {"weights": Weights(total_bytes=1 << 30)}
PAIR = TARGET.model_copy(update=SMALL), DRAFTER.model_copy(update=SMALL)


def plan_for(
    host: str = "h100", *raw: str, drafts: bool = True, context: int = 32768
) -> LaunchPlan:
    options = make_options(engine=raw, context=context)
    options = options if drafts else options.without_speculation()
    return make_plan(load_host(host), *PAIR, None, options)


def value_of(plan: LaunchPlan, flag: str) -> str | None:
    decision = plan.find(flag)
    return None if decision is None else decision.value


def list_values(plans: list[LaunchPlan], flag: str) -> list[float]:
    return [float(value) for plan in plans if (value := value_of(plan, flag))]


def descend(plan: LaunchPlan, *causes: Cause) -> tuple[list[LaunchPlan], tuple[Rung, ...]]:
    """Step down for one cause after the other, as far as it goes."""
    plans, taken = [plan], tuple[Rung, ...]()
    for cause in causes:
        if (lower := step_down(plans[-1], cause, taken)) is not None:
            plans.append(lower[0])
            taken = (*taken, lower[1])
    return plans, taken


class Longest(Random):
    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def crash(at: float, healthy: float = 30, cause: Cause = "unknown") -> Crash:
    return Crash(at=at, cause=cause, healthy_seconds=healthy)


machines = some.sampled_from(["h100", "gb10", "cpu-server"])
plans = some.builds(plan_for, machines, drafts=some.booleans(), context=some.integers(128, 40960))


@pytest.mark.parametrize("cause", ["illegal-access", "hang"])
def test_an_illegal_access_or_a_hang_takes_the_graphs_then_the_drafts(cause: Cause) -> None:
    plans, taken = descend(plan_for("h100", SCHEDULE, "[[1, 8, 15]]"), *[cause] * 5)
    assert taken == ("eager", "short-drafts", "no-speculation")
    assert [bool(plan.find(SCHEDULE)) for plan in plans] == [True, True, False, False]
    assert [bool(plan.find("--enforce-eager")) for plan in plans] == [False, True, True, True]
    assert [value_of(plan, LENGTH) for plan in plans] == ["15", "15", "3", None]
    assert [SPECULATION in plan.argv() for plan in plans] == [True, True, True, False]
    assert plans[-1].drafter is None


def test_what_a_plan_does_not_have_is_no_rung() -> None:
    spark, short = plan_for("gb10"), plan_for("gb10", LENGTH, "2")
    assert descend(spark, "hang", "hang")[1] == ("short-drafts", "no-speculation")
    assert descend(short, "hang", "hang")[1] == ("no-speculation",)
    assert descend(plan_for("gb10", drafts=False), "hang")[1] == ()


def test_running_out_of_memory_lowers_the_share_and_a_long_context() -> None:
    first = plan_for("h100", "--gpu-memory-utilization", "0.8")
    plans, taken = descend(first, *OUT_OF_MEMORY)
    assert taken == ("less-memory",) * 3
    assert list_values(plans, "--gpu-memory-utilization") == [0.8, 0.75, 0.7, 0.65]
    assert list_values(plans, "--max-model-len") == [32768, 16384, 8192, 8192]
    short, _ = descend(plan_for(context=6000), *OUT_OF_MEMORY)
    assert list_values(short, "--max-model-len") == [6000, 4096, 4096, 4096]


def test_on_a_cpu_the_cache_shrinks_to_one_sequence_of_full_length() -> None:
    plans, _ = descend(plan_for("cpu-server", context=4096), *OUT_OF_MEMORY)
    sizes = list_values(plans, "--kv-cache-memory-bytes")
    memory = plans[0].memory
    sequence, block = memory.bytes_per_sequence or 0, 128 * (memory.kv_bytes_per_token or 0)
    assert sizes == [4 * sequence + block, (4 * sequence + block) // 2, sequence + block]


@pytest.mark.parametrize("unknown", ["kv_bytes_per_token", "bytes_per_sequence"])
def test_a_cache_of_which_nobody_knows_the_least_is_halved(unknown: str) -> None:
    plan = plan_for("cpu-server")
    memory = plan.memory.model_copy(update={unknown: None})
    plans, _ = descend(plan.model_copy(update={"memory": memory}), *OUT_OF_MEMORY)
    sizes = list_values(plans, "--kv-cache-memory-bytes")
    assert sizes == [sizes[0] // part for part in (1, 2, 4, 8)]


def test_a_refused_setting_ends_it_and_what_nobody_understands_costs_the_speculation() -> None:
    assert may_restart([crash(0, cause="configuration")], 0, Random(0)) is None
    assert step_down(plan_for(), "configuration", ()) is None
    assert descend(plan_for(), "unknown", "unknown")[1] == ("no-speculation",)


def test_every_step_is_told_with_its_cause_and_what_was_before() -> None:
    plans, _ = descend(plan_for("gb10"), "illegal-access", "out-of-memory", "unknown")
    why = "short-drafts, after illegal memory accesses; it was 15"
    assert plans[1].find(LENGTH) == Decision(flag=LENGTH, value="3", source="measured", because=why)
    assert plans[-1].notes == (
        *plans[0].notes,
        "the plan was reduced: short-drafts, after illegal memory accesses",
        "the plan was reduced: less-memory, after running out of memory",
        "the plan was reduced: no-speculation, after repeated crashes",
    )
    assert LaunchPlan.model_validate_json(plans[1].to_json()) == plans[1]


def test_speculation_that_was_given_as_json_is_shortened_and_removed() -> None:
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 4, 9]]}
    given = json.dumps({"method": "dflash", "num_speculative_tokens": 9, **schedule})
    plans, taken = descend(plan_for("gb10", SPECULATION, given), "hang", "hang")
    assert taken == ("short-drafts", "no-speculation")
    assert (value_of(plans[1], LENGTH), value_of(plans[1], SCHEDULE)) == ("3", None)
    assert not [word for word in plans[2].argv() if "spec" in word]


def test_speculation_without_a_length_can_only_be_removed() -> None:
    ngram = plan_for("gb10", SPECULATION, '{"method": "ngram"}')
    assert descend(ngram, "hang")[1] == ("no-speculation",)


@pytest.mark.parametrize(
    ("given", "lengths"), [("32k", ["32000", "16000"]), ("auto", ["auto", "auto"])]
)
def test_a_context_with_a_suffix_is_halved_and_one_that_the_engine_finds_is_left_to_it(
    given: str, lengths: list[str]
) -> None:
    plans, taken = descend(plan_for("h100", "--max-model-len", given), "out-of-memory")
    assert [value_of(plan, "--max-model-len") for plan in plans] == lengths
    assert taken == ("less-memory",)


@given(plans, some.lists(some.sampled_from(CAUSES), max_size=30))
def test_the_ladder_ends_and_no_plan_comes_twice(plan: LaunchPlan, causes: list[Cause]) -> None:
    plans, taken = descend(plan, *causes)
    commands = [" ".join(plan.argv()) for plan in plans]
    assert len(set(commands)) == len(commands)
    assert len(taken) <= 6


@given(plans, some.lists(some.sampled_from(CAUSES), max_size=8))
def test_every_step_takes_less_and_can_be_started(plan: LaunchPlan, causes: list[Cause]) -> None:
    plans, _ = descend(plan, *causes)
    for flag in ("--gpu-memory-utilization", "--max-model-len", "--kv-cache-memory-bytes"):
        figures = list_values(plans, flag)
        assert figures == sorted(figures, reverse=True)
        assert all(figure > 0 for figure in figures)
        assert len(figures) in (0, len(plans))
    for lower in plans:
        words = lower.argv()
        flags = [word for word in words if word.startswith("--")]
        assert len(set(flags)) == len(flags)
        if SPECULATION in words:
            assert json.loads(words[words.index(SPECULATION) + 1])["method"] == "dflash"


@pytest.mark.parametrize(
    ("history", "longest"),
    [
        pytest.param([], 0, id="nothing happened"),
        pytest.param([crash(0)], 5, id="the first"),
        pytest.param([crash(0), crash(60)], 10, id="the second"),
        pytest.param([crash(0), crash(60), crash(120)], None, id="three in the window"),
        pytest.param([crash(0), crash(800), crash(901)], 20, id="three in more than the window"),
        pytest.param([crash(1000 * n) for n in range(9)], 300, id="the cap"),
        pytest.param([crash(0), crash(700, 600)], 5, id="ten healthy minutes"),
        pytest.param([crash(0), crash(60), crash(700, 599)], None, id="not quite"),
        pytest.param([crash(n * 1000, 0) for n in range(3)], None, id="three failed starts"),
        pytest.param([crash(0, 0), crash(1000), crash(2000, 0)], 20, id="one of them worked"),
    ],
)
def test_a_plan_gets_three_crashes_and_longer_waits(
    history: list[Crash], longest: float | None
) -> None:
    now = history[-1].at if history else 0
    assert may_restart(history, now, Longest()) == longest


def test_pauses_grow_to_a_bound_and_begin_anew_after_good_health() -> None:
    history, waits = list[Crash](), list[float]()
    for number in range(9):
        history.append(crash(240.0 * number, 200))
        waits.append(decide_wait(history, Longest()))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert decide_wait([*history, crash(9999, 600)], Longest()) == 5


def test_engines_that_died_together_do_not_start_together() -> None:
    chance = Random(7)
    waits = {may_restart([crash(0)], 0, chance) or 0 for _ in range(20)}
    assert len(waits) == 20
    assert 3.75 <= min(waits) < 4 < max(waits) <= 5


@given(some.lists(some.sampled_from(CAUSES), min_size=40, max_size=40), some.floats(0, 1200))
def test_an_engine_that_never_gets_ready_is_given_up(causes: list[Cause], start: float) -> None:
    plan, taken, history = plan_for(), tuple[Rung, ...](), list[Crash]()
    now, ended = 0.0, False
    for cause in causes:
        now += start
        history.append(crash(now, 0, cause))
        if (wait := may_restart(history, now, Random(0))) is not None:
            now += wait
        elif (lower := step_down(plan, cause, taken)) is not None:
            plan, taken, history = lower[0], (*taken, lower[1]), []
        else:
            ended = True
            break
    assert ended


def test_an_address_that_somebody_else_has_is_waited_for_without_end() -> None:
    taken = [Crash(float(at), "port", 0.0) for at in range(9)]
    waits = [may_restart(taken[:count], 9.0, Random(1)) for count in (1, 2, 9)]
    assert all(wait is not None and wait > 0 for wait in waits)
    assert may_restart([crash(0), crash(1), crash(2), *taken], 9.0, Random(1)) is None


@pytest.mark.parametrize(
    ("minutes", "wait"),
    [
        ([], 0),
        ([0], 5),
        ([0, 1], 10),
        ([0, 0.1, 0.2, 0.3], 40),
        ([minute * 5 for minute in range(10)], 300),
        ([0, 1, 2, 60], 5),
        ([0, 1, 2, 60, 61], 10),
        ([5, 4, 3], 20),
    ],
)
def test_a_supervisor_that_is_killed_over_and_over_is_succeeded_later_each_time(
    minutes: list[float], wait: float
) -> None:
    began = datetime(2026, 11, 16, tzinfo=UTC)
    assert decide_takeover_wait([began + timedelta(minutes=at) for at in minutes]) == wait
