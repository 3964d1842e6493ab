"""Records as a measurement leaves them: drawn from fixed chance, summarized and judged for real."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from random import Random
from typing import Any

from slipstream.hardware import load_host
from slipstream.measuring.bench import BenchReport, BenchWarmUp, Conditions, Load
from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.blocks import Arm
from slipstream.measuring.comparing.comparison import ComparedArm, Comparison, Start
from slipstream.measuring.comparing.design import list_rounds
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from tests.unit.planning.pieces import DRAFTER, TARGET

KINDS = {"code": 0.86, "dialogue": 0.66, "prose": 0.58, "json": 0.9}
# What an arm accepts, beside what B does: C repeats what it has read, D is a weaker drafter.
SKILLS = {
    "B": dict.fromkeys(KINDS, 1.0),
    "C": {"code": 1.1, "dialogue": 0.4, "prose": 0.3, "json": 1.0},
    "D": dict.fromkeys(KINDS, 0.9),
}
CONCURRENCIES = (1, 4, 8)
TOKENS = 128
POSITIONS = 15
PLAIN_SPEED = 14.2
BUSY = MachineLoad(
    cores=2, seconds=60, other_cpu_share=0.45, steal_share=0, slowdown=1, busiest="ffmpeg"
)


def make_plans(machine: str = "gb10") -> tuple[LaunchPlan, LaunchPlan]:
    """Plan the pair with and without its drafter."""
    host = load_host(machine)
    plain = make_plan(host, TARGET, None, None, make_options())
    return plain, make_plan(host, TARGET, DRAFTER, None, make_options())


def make_conditions(**more: Any) -> Conditions:
    """Tell the conditions of an afternoon on a GB10."""
    usual: dict[str, Any] = {
        "at": datetime(2026, 11, 15, 8, 10, 30, tzinfo=UTC),
        "command": "slipstream compare Qwen/Qwen3-8B --rounds 2 --html page.html",
        "model": TARGET.name,
        "versions": {"vllm": "0.32.0", "torch": "2.13.0"},
        "plan": None,
        "host": load_host("gb10"),
        "workload": "code dialogue prose json",
        "workload_sha256": "5f0c" * 16,
        "left_out": {},
        "seed": 0,
        "max_tokens": TOKENS,
        "thinking": None,
        "prefix_cache": "cold",
    }
    return Conditions(**(usual | more))


def make_samples(
    arm: Arm,
    chance: Random,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    concurrencies: Sequence[int] = CONCURRENCIES,
    prompts: int = 8,
    failing: float = 0.0,
) -> list[Sample]:
    """Serve every prompt of every load, as many at once as the load has."""
    start = chance.gauss(1, 0.012)
    samples: list[Sample] = []
    for concurrency in concurrencies:
        for kind in kinds:
            free = [0.0] * concurrency
            for number in range(prompts):
                at = free.index(min(free))
                sample = _serve(arm, kind, concurrency, number, free[at], start, chance)
                if chance.random() < failing:
                    lost = {"error": "HTTP 500", "output_tokens": 0, "first_token_seconds": None}
                    sample = sample.model_copy(update=lost)
                free[at] += sample.seconds
                samples.append(sample)
    return samples


def _serve(
    arm: Arm, kind: str, concurrency: int, number: int, began: float, start: float, chance: Random
) -> Sample:
    share = KINDS.get(kind, 0.7) * (0.94 + 0.01 * (number % 8))
    crowd = 1 / (1 + 0.035 * (concurrency - 1))
    speed = PLAIN_SPEED * start * crowd * chance.gauss(1, 0.01)
    drafts: dict[str, Any] = {}
    if arm in SKILLS:
        share *= SKILLS[arm].get(kind, 1.0)
        steps = [1 + _count_accepted(share, chance) for _ in range(TOKENS // 3)]
        by_position = [sum(step > at for step in steps) for at in range(1, POSITIONS + 1)]
        mean = sum(steps) / len(steps)
        speed *= mean / (1.25 + 0.2 * (concurrency - 1))
        drafts = {
            "drafts": len(steps),
            "drafted": POSITIONS * len(steps),
            "accepted": sum(by_position),
            "accepted_by_position": tuple(by_position),
        }
    first = 0.11 * (1 + 0.3 * (concurrency - 1)) * chance.gauss(1, 0.06)
    return Sample(
        prompt_id=f"{kind}-{number}",
        kind=kind,
        concurrency=concurrency,
        began_at=began,
        seconds=first + (TOKENS - 1) / speed,
        first_token_seconds=first,
        output_tokens=TOKENS,
        **drafts,
    )


def make_task_samples(arm: Arm, chance: Random, *, tasks: int = 8, turns: int = 5) -> list[Sample]:
    """Serve tasks one after the other: arm B has a prefix cache and reads only what is new."""
    start, clock, samples = chance.gauss(1, 0.012), 0.0, []
    for kind, tokens in (("agent-2k", 400), ("agent-8k", 1600)):
        for task in range(1, tasks + 1):
            for turn in range(1, turns + 1):
                cached = tokens * (turn - 1) if arm == "B" else 0
                first = (tokens * turn - cached) / 4000 * start * chance.gauss(1, 0.03)
                samples.append(
                    Sample(
                        prompt_id=f"{kind}-{task:02d}/{turn}",
                        kind=kind,
                        concurrency=1,
                        began_at=clock,
                        seconds=first + 1.5 * start,
                        first_token_seconds=first,
                        prompt_tokens=tokens * turn,
                        cached_tokens=cached,
                        output_tokens=41,
                        task=f"{kind}-{task:02d}",
                        turn=turn,
                        call="parsed" if turn < turns else None,
                    )
                )
                clock += samples[-1].seconds
    return samples


def _count_accepted(share: float, chance: Random) -> int:
    return next((n for n in range(POSITIONS) if chance.random() > share), POSITIONS)


@cache
def make_comparison(
    names: tuple[str, ...] = ("plain", "drafted"),
    *,
    rounds: int = 2,
    draws: int = 200,
    tasks: bool = False,
    **load: Any,
) -> Comparison:
    """Compare the plain plan with the drafted one, or several, in turns."""
    chance = Random(7)
    starts = []
    for number, order in enumerate(list_rounds(len(names), rounds)):
        for arm in order:
            samples = (make_task_samples if tasks else make_samples)(arm, chance, **load)
            starts.append(make_start(arm, number, samples, chance))
    plain, drafted = make_plans()
    plans = [plain, *[drafted] * (len(names) - 1)]
    return Comparison(
        conditions=make_conditions(**({"tool_choice": "named"} if tasks else {})),
        arms=tuple(ComparedArm(name=n, plan=plan) for n, plan in zip(names, plans, strict=True)),
        starts=tuple(starts),
        verdict=judge(starts, arms=names, draws=draws),
    )


@cache
def make_bench(*, tasks: bool = False, **load: Any) -> BenchReport:
    """Measure the drafted server alone."""
    chance = Random(11)
    samples = (make_task_samples if tasks else make_samples)("B", chance, **load)
    start = make_start("B", 0, samples, chance)
    asked = {"tool_choice": "named"} if tasks else {}
    return BenchReport(
        conditions=make_conditions(**asked, plan=make_plans()[1], start_seconds=412.0),
        warm_up=start.warm_up,
        cells=tuple(start.cells),
        samples=tuple(samples),
    )


def make_start(arm: Arm, number: int, samples: Sequence[Sample], chance: Random) -> Start:
    """Start an arm that answered so."""
    level = 0.07 if arm == "A" else 0.03
    rounds = 4 + (arm == "B")
    times = tuple(level * (1 + 1.4 * 0.3**at) * chance.gauss(1, 0.01) for at in range(rounds))
    loads = dict.fromkeys((sample.kind, sample.concurrency) for sample in samples)
    return Start(
        arm=arm,
        round=number,
        samples=tuple(samples),
        start_seconds=380 + 60 * chance.random(),
        warm_up=BenchWarmUp(rounds=rounds, seconds_per_token=times, flat=True),
        loads=tuple(
            Load(kind=kind, concurrency=n, counts=EngineCounts(), memory_bytes=31 << 30)
            for kind, n in loads
        ),
    )
