"""One start of an engine: started from a plan, warmed up, measured, ended.

A start that was disturbed by other processes is measured once more, if the machine gets quiet.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from slipstream.measuring.bench import Bench, BenchWarmUp, Load
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.machine_watch import MachineLoad, MachineWatch
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.access.gate_file import GATE_VARIABLE
from slipstream.serving.plugin_settings import steer_engine
from slipstream.serving.run import read_process
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.serving.supervision.engine_session import measure_session

CACHED_TOKENS = "--enable-prompt-tokens-details"

ShowProgress = Callable[[str], None]


class StartFigures(NamedTuple):
    """The figures of one start, and the load of the machine during it."""

    start_seconds: float
    warm_up: BenchWarmUp
    loads: tuple[Load, ...]
    samples: tuple[Sample, ...]
    machine: MachineLoad | None = None
    repeated: bool = False


def measure_start(
    plan: LaunchPlan,
    bench: Bench,
    *,
    log: Path,
    environment: Mapping[str, str],
    progress: ShowProgress,
    watch: MachineWatch,
) -> StartFigures:
    """Start a plan's engine for as long as it is measured; again if the machine was busy."""
    start = partial(open_start, plan, environment=environment, progress=progress, watch=watch)
    with start(bench, log=log) as (_, first):
        pass
    if first.machine is None or not first.machine.is_busy:
        return first
    progress(f"was disturbed: {first.machine.describe()}; waiting for a quiet machine")
    if not watch.wait_until_quiet():
        progress("its figures are kept, because the machine stays busy")
        return first
    salted = replace(bench, salt=f"{bench.salt} again")
    with start(salted, log=log.with_stem(f"{log.stem}-again")) as (_, again):
        figures = (again._replace(repeated=True), first)
    return min(figures, key=lambda one: one.machine.disturbance if one.machine else 0.0)


@contextmanager
def open_start(
    plan: LaunchPlan,
    bench: Bench,
    *,
    log: Path,
    environment: Mapping[str, str],
    progress: ShowProgress,
    watch: MachineWatch,
    on_wait: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[str, StartFigures]]:
    """Start a plan's engine, measure it, and keep it running within the block."""
    pids: list[int] = []
    took = [0.0]

    def wait(seconds: float) -> None:
        took.append(seconds)
        on_wait(seconds)

    progress("starts")
    with run_engine(
        report_usage(plan), log=log, environment=environment, on_start=pids.append, on_wait=wait
    ) as url:
        endpoint, leader = Endpoint(url), read_process(pids[0])
        bench = replace(bench, measure_memory=lambda: measure_session(leader) if leader else None)
        progress(f"warms up, started in {took[-1]:.0f} s")
        warm = bench.warm_up(endpoint)
        before = watch.begin()
        loads, samples = bench.measure(endpoint)
        machine = watch.end(before, pids)
        yield url, StartFigures(took[-1], warm, tuple(loads), tuple(samples), machine)


def steer_start(plan: LaunchPlan, log: Path) -> LaunchPlan:
    """Return the plan with the scheduler that `serve` runs: drafts are cut and copied as there.

    What the scheduler writes goes into a folder beside the log.
    """
    folder = log.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    place = Choice(
        str(folder / "gate.json"), "default", "the scheduler's files are in the same folder"
    )
    return steer_engine(plan, steered=True).change_variables({GATE_VARIABLE: place})


def report_usage(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with per-request reports of cached tokens and drafts."""
    cached = Choice(True, "default", "cached tokens by request")
    plan = plan.change(rest={CACHED_TOKENS: cached, **plan.settings.rest})
    if plan.speculation is None or plan.settings.draft_metrics:
        return plan
    return plan.change(draft_metrics=Choice("summary", "default", "acceptance by request"))
