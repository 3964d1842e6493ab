"""One start of an engine: started from a plan, warmed up, measured, ended."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from slipstream.measuring.bench import Bench, BenchCell, WarmUp
from slipstream.measuring.endpoint import Endpoint
from slipstream.measuring.sample import Sample
from slipstream.planning.plan import Decision, LaunchPlan
from slipstream.serving.engine_process import run_engine
from slipstream.serving.engine_session import measure_session
from slipstream.serving.run import read_process

DRAFT_METRICS = "--per-request-spec-decode-metrics"


class StartFigures(NamedTuple):
    """What one start gave."""

    start_seconds: float
    warm_up: WarmUp
    cells: tuple[BenchCell, ...]
    samples: tuple[Sample, ...]


def measure_start(
    plan: LaunchPlan,
    bench: Bench,
    *,
    log: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> StartFigures:
    """Start a plan's engine for as long as it is measured."""
    pids: list[int] = []
    took = [0.0]
    say("starts")
    with run_engine(
        tell_drafts(plan),
        log=log,
        environment=environment,
        on_start=pids.append,
        on_wait=took.append,
    ) as url:
        endpoint, leader = Endpoint(url), read_process(pids[0])
        bench = replace(bench, measure_memory=lambda: measure_session(leader) if leader else None)
        say(f"warms up, started in {took[-1]:.0f} s")
        warm = bench.warm_up(endpoint)
        cells, samples = bench.measure(endpoint)
    return StartFigures(took[-1], warm, tuple(cells), tuple(samples))


def tell_drafts(plan: LaunchPlan) -> LaunchPlan:
    """Have an engine with drafts tell each request what became of them."""
    if plan.drafter is None or plan.find(DRAFT_METRICS):
        return plan
    told = Decision(
        flag=DRAFT_METRICS, value="summary", source="default", because="acceptance by request"
    )
    return plan.model_copy(update={"decisions": (*plan.decisions, told)})
