"""One start of an engine: started from a plan, warmed up, measured, ended.

A start that was disturbed by other processes is measured once more, if the machine gets quiet.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from slipstream.hardware.machine_watch import MachineLoad, MachineWatch
from slipstream.measuring.bench import Bench, BenchCell, BenchWarmUp
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.sample import Sample
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.run import read_process
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.serving.supervision.engine_session import measure_session

CACHED_TOKENS = "--enable-prompt-tokens-details"


class StartFigures(NamedTuple):
    """The figures of one start, and the load of the machine during it."""

    start_seconds: float
    warm_up: BenchWarmUp
    cells: tuple[BenchCell, ...]
    samples: tuple[Sample, ...]
    machine: MachineLoad | None = None
    repeated: bool = False


def measure_start(
    plan: LaunchPlan,
    bench: Bench,
    *,
    log: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    watch: MachineWatch,
) -> StartFigures:
    """Start a plan's engine for as long as it is measured; again if the machine was busy."""
    first = _measure_once(plan, bench, log, environment, say, watch)
    if first.machine is None or not first.machine.is_busy:
        return first
    say(f"was disturbed: {first.machine.describe()}; waits for a quiet machine")
    if not watch.wait_until_quiet():
        say("its figures are kept: the machine stays busy")
        return first
    bench = replace(bench, salt=f"{bench.salt} again")
    again = _measure_once(
        plan, bench, log.with_stem(f"{log.stem}-again"), environment, say, watch
    )._replace(repeated=True)
    return min((again, first), key=lambda one: one.machine.disturbance if one.machine else 0.0)


def _measure_once(
    plan: LaunchPlan,
    bench: Bench,
    log: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    watch: MachineWatch,
) -> StartFigures:
    pids: list[int] = []
    took = [0.0]
    say("starts")
    with run_engine(
        report_usage(plan),
        log=log,
        environment=environment,
        on_start=pids.append,
        on_wait=took.append,
    ) as url:
        endpoint, leader = Endpoint(url), read_process(pids[0])
        bench = replace(bench, measure_memory=lambda: measure_session(leader) if leader else None)
        say(f"warms up, started in {took[-1]:.0f} s")
        warm = bench.warm_up(endpoint)
        before = watch.begin()
        cells, samples = bench.measure(endpoint)
        machine = watch.end(before, pids)
    return StartFigures(took[-1], warm, tuple(cells), tuple(samples), machine)


def report_usage(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with per-request reports of cached tokens and drafts."""
    cached = Choice(True, "default", "cached tokens by request")
    plan = plan.change(rest={CACHED_TOKENS: cached, **plan.settings.rest})
    if plan.speculation is None or plan.settings.draft_metrics:
        return plan
    return plan.change(draft_metrics=Choice("summary", "default", "acceptance by request"))
