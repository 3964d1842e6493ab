"""A `BenchReport` as a report and as a page, and one line per cell while it is measured."""

from collections.abc import Callable, Mapping

from slipstream.measuring.bench import BenchCell, BenchReport, BenchWarmUp
from slipstream.measuring.comparing.blocks import Block
from slipstream.reporting.html_page import render_page
from slipstream.reporting.measuring.charts import draw_loads
from slipstream.reporting.measuring.conditions import (
    describe_conditions,
    describe_plan,
    show_machine_load,
)
from slipstream.reporting.measuring.sides import (
    describe_turns,
    read_first_token,
    read_per_token,
    read_task_seconds,
    show_cached,
    show_calls,
    show_share,
    take_side,
)
from slipstream.reporting.measuring.timeline import Strip, draw_run
from slipstream.reporting.report import Report, Section, Table, clean, show, tabulate
from slipstream.steering.percentiles import Percentiles
from slipstream.units import UNKNOWN, show_bytes

RANKS = "the median, p90, p95 and, from 100 on, p99"
# Of fewer, the nearest rank of p99 is the greatest of all.
LEAST_FOR_P99 = 100


def render_cell_line(cell: BenchCell) -> str:
    task = "" if cell.tasks is None else f"  {show(read_task_seconds(cell), 1, 's')} a task"
    first, each = read_first_token(cell), read_per_token(cell)
    steps = "" if cell.tokens_per_step is None else f"  {cell.tokens_per_step:.2f} tokens per step"
    failed = f"  {cell.failed} of {cell.requests} failed" if cell.failed else ""
    return (
        f"{clean(cell.kind):<12} concurrency {cell.concurrency:<3} {cell.tokens_per_second:>8.1f} "
        f"tokens/s  first token {show(first, 0, 'ms'):>8}  then {show(each, 1, 'ms'):>8} per token"
        f"{steps}{task}{failed}"
    )


def render_bench_html(report: BenchReport) -> str:
    sides = [take_side(report)]
    block = Block(arm="B", round=0, samples=report.samples)
    strip = Strip("server", report.conditions.start_seconds, report.warm_up, block)
    return render_page(describe_bench(report), [*draw_loads(sides), draw_run([strip], [])])


def describe_bench(report: BenchReport) -> Report:
    conditions, plan = report.conditions, report.conditions.plan
    speeds = _measure_loads(report)
    started, rate = conditions.start_seconds, conditions.arrivals_per_second
    arrivals = "per second on average, Poisson; a kind's concurrency is the maximum in flight"
    return Report(
        title=f"{conditions.model}: {conditions.workload}",
        answer="cannot tell" if report.machine and report.machine.is_busy else "measured",
        figure=show(next(iter(speeds.values()))) if speeds else UNKNOWN,
        interval="tokens/s",
        figure_note=f"over all kinds, {next(iter(speeds))}" if speeds else "",
        sentence=_conclude(report, speeds),
        sections=[
            Section(f"speed, with {RANKS} of the requests", _tabulate(report, _SPEED)),
            Section(f"tasks, with {RANKS} of their wall time", _tabulate(report, _TASKS)),
            describe_turns([take_side(report)]),
            Section("drafts, cache and memory", _tabulate(report, _ENGINE)),
            *describe_conditions(
                conditions,
                ("start", f"ready after {started:.0f} s" if started is not None else UNKNOWN),
                ("warm-up", _describe_warm_up(report.warm_up)),
                *([] if rate is None else [("arrivals", f"{rate:g} {arrivals}")]),
                ("machine load", show_machine_load(report.machine)),
            ),
            *([] if plan is None else [describe_plan("the engine's command", plan)]),
        ],
    )


def _conclude(report: BenchReport, speeds: Mapping[str, float]) -> str:
    if not speeds:
        return "Nothing was measured."
    rates = ", ".join(f"{speed:.1f} tokens/s {place}" for place, speed in speeds.items())
    failed = sum(cell.failed for cell in report.cells)
    requests = sum(cell.requests for cell in report.cells)
    end = f"; {failed} of {requests} requests failed" if failed else ""
    sentence = (
        f"{report.conditions.model} reaches {rates} over all kinds{_tell_tasks(report)}{end}."
    )
    if report.machine and report.machine.is_busy:
        return f"The machine was busy: {report.machine.describe()}. Meanwhile, {sentence}"
    return sentence


def _tell_tasks(report: BenchReport) -> str:
    """Return the median wall time of each kind of task at the smallest concurrency."""
    least = min(cell.concurrency for cell in report.cells)
    cells = [cell for cell in report.cells if cell.tasks and cell.concurrency == least]
    times = ", ".join(f"{cell.kind} {show(read_task_seconds(cell), 1, 's')}" for cell in cells)
    return f"; wall time per task: {times}" if times else ""


def _measure_loads(report: BenchReport) -> dict[str, float]:
    """Return by load the tokens of all kinds by the time that they took together.

    Kinds that arrive by the clock are one load, each with as many in flight as it came to.
    """
    rate = report.conditions.arrivals_per_second
    loads: dict[str, list[BenchCell]] = {}
    for cell in sorted(report.cells, key=lambda cell: cell.concurrency):
        name = f"at concurrency {cell.concurrency}"
        if rate is not None:
            most = max(cell.concurrency for cell in report.cells)
            name = f"at {rate:g} requests per second, with up to {most} in flight"
        loads.setdefault(name, []).append(cell)
    return {
        name: sum(cell.output_tokens for cell in cells) / (sum(cell.seconds for cell in cells) or 1)
        for name, cells in loads.items()
    }


def _tabulate(report: BenchReport, columns: "Columns") -> Table:
    cells = [cell for cell in report.cells if cell.tasks or columns is not _TASKS]
    return tabulate(sorted(cells, key=lambda cell: (cell.kind, cell.concurrency)), _CELL | columns)


def _show_ranks(ranks: Percentiles | None, count: int, factor: int, decimals: int) -> str:
    if ranks is None:
        return UNKNOWN
    shown = [ranks.p50, ranks.p90, ranks.p95, *([ranks.p99] if count >= LEAST_FOR_P99 else [])]
    return " / ".join(f"{factor * seconds:.{decimals}f}" for seconds in shown)


def _describe_warm_up(warm: BenchWarmUp) -> str:
    if not warm.seconds_per_token:
        return "none"
    last = 1000 * warm.seconds_per_token[-1]
    flat = "flat" if warm.flat else "not flat yet"
    return f"{warm.rounds} rounds, in the last {last:.1f} ms per token: {flat}"


def _count(cell: BenchCell) -> int:
    return cell.requests - cell.failed


Columns = dict[str, Callable[[BenchCell], str]]
_CELL: Columns = {
    "kind": lambda cell: cell.kind,
    "concurrency": lambda cell: str(cell.concurrency),
}
_SPEED: Columns = {
    "requests": lambda cell: str(cell.requests),
    "failed": lambda cell: str(cell.failed),
    "tokens/s": lambda cell: show(cell.tokens_per_second),
    "first token, ms": lambda cell: _show_ranks(cell.first_token, _count(cell), 1000, 0),
    "per token, ms": lambda cell: _show_ranks(cell.per_token, _count(cell), 1000, 1),
    "total, s": lambda cell: _show_ranks(cell.total, _count(cell), 1, 1),
}
_ENGINE: Columns = {
    "tokens per step": lambda cell: show(cell.tokens_per_step, 2),
    "accepted": lambda cell: show_share(cell.acceptance_rate),
    "cache hits": lambda cell: show_share(cell.cache_hit_share),
    "preemptions": lambda cell: show(cell.preemptions, 0),
    "memory": lambda cell: show_bytes(cell.memory_bytes),
    "accepted by position, %": lambda cell: (
        " ".join(f"{100 * share:2.0f}" for share in cell.by_position) or UNKNOWN
    ),
}
_TASKS: Columns = {
    "tasks": lambda cell: str(cell.tasks.tasks if cell.tasks else 0),
    "failed": lambda cell: str(cell.tasks.failed if cell.tasks else 0),
    "per task, s": lambda cell: (
        _show_ranks(cell.tasks.seconds, cell.tasks.tasks, 1, 1) if cell.tasks else UNKNOWN
    ),
    "cached": lambda cell: show_cached([cell]),
    "tool calls": lambda cell: show_calls([cell]),
}
