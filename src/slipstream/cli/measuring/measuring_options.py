"""Options that the measuring verbs share: prompts, load and report files."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from slipstream.cli.options import OptionAdder, natural_number
from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.measuring.bench import Bench, Conditions
from slipstream.measuring.workloads import Workload, load_workload, names_tasks
from slipstream.planning import LaunchPlan

Report = TypeVar("Report")
WORKLOAD = ("code", "reasoning", "dialogue", "prose")


def add_workload(add: OptionAdder, *, prompts: int, loads: bool = True) -> OptionAdder:
    """Add the group of options for prompts, and with `loads` the concurrencies to measure at."""
    add = add.group("prompts and load")
    add(
        "--workload NAME|FILE ...",
        "kinds of prompts, `all`, `agent` (tasks of several turns with tools), a JSONL file, "
        "a recording, or humaneval:FILE and the like",
        default=WORKLOAD,
    )
    if loads:
        add(
            "--concurrency N ...",
            "concurrent requests or tasks, one load per number (default 1 4 8, for agent 1)",
            default=(1, 4, 8),
        )
        add(
            "--tool-choice",
            "tool_choice in requests of tasks, if the server parses tool calls: auto, or the "
            "expected tool by name",
            default="auto",
            choices=("auto", "named"),
        )
    add("--prompts N", "prompts or tasks per kind", default=prompts)
    add("--max-tokens TOKENS", "longest answer", default=128)
    add_thinking(add)
    add_seed(add)
    return add


def add_thinking(add: OptionAdder) -> None:
    """Add the option that sets the chat template's switch for thinking."""
    add(
        "--thinking",
        "whether the model thinks, if its chat template has a switch (default: the template's)",
        choices=("on", "off"),
    )


def add_seed(add: OptionAdder) -> None:
    """Add the seed of everything that is drawn at random."""
    add("--seed N", "seed of everything that is random", natural_number, 0)


def add_reports(add: OptionAdder) -> None:
    """Add the options for report files."""
    add = add.group("reports")
    add("--html FILE", "write the report as an HTML page with charts")
    add("--markdown FILE", "write the report's tables as Markdown")


def read_workload(options: argparse.Namespace, context: int | None) -> Workload:
    """Return the prompts that the options select."""
    return load_workload(
        list(options.workload),
        most_a_kind=options.prompts,
        seed=options.seed,
        context=context,
        max_tokens=options.max_tokens,
    )


def read_concurrencies(options: argparse.Namespace) -> Sequence[int]:
    """Return the concurrencies to measure; tasks run at concurrency 1 unless more is requested."""
    chosen: Sequence[int] = options.concurrency
    return chosen if isinstance(chosen, list) or not names_tasks(options.workload) else (1,)


def read_thinking(options: argparse.Namespace) -> bool | None:
    """Return whether the model thinks, None to leave it to its chat template."""
    return None if options.thinking is None else options.thinking == "on"


def describe_conditions(
    options: argparse.Namespace,
    bench: Bench,
    *,
    model: str,
    versions: dict[str, str],
    plan: LaunchPlan | None,
    host: Host | None,
    start_seconds: float | None = None,
) -> Conditions:
    """Return the conditions under which the figures are measured."""
    return Conditions(
        at=datetime.now(UTC),
        command=shlex.join(["slipstream", *sys.argv[1:]]),
        model=model,
        versions=versions,
        plan=plan,
        host=host,
        workload=bench.workload.name,
        workload_sha256=bench.workload.sha256,
        left_out=bench.workload.left_out,
        seed=options.seed,
        max_tokens=options.max_tokens,
        thinking=bench.thinking,
        prefix_cache=bench.prefix_cache,
        start_seconds=start_seconds,
        arrivals_per_second=bench.arrivals_per_second,
        tool_choice=bench.tool_choice if bench.workload.has_tasks else None,
    )


def make_tick(screen: Screen) -> Callable[[str, int, int, int], None]:
    """Return a callback for `Bench.tick` that counts requests on the screen."""

    def tick(kind: str, concurrency: int, done: int, total: int) -> None:
        screen.count(f"{kind}, concurrency {concurrency}", done, total, "requests")

    return tick


def require_writable(*files: Path | None) -> None:
    """Raise if a report's folder does not exist, before anything is measured."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise InvalidInputError(
                f"there is no folder {file.absolute().parent}",
                hint=f"mkdir -p {file.absolute().parent}",
            )


def write_reports(
    options: argparse.Namespace,
    report: Report,
    html: Callable[[Report], str],
    markdown: Callable[[Report], str],
    screen: Screen,
) -> None:
    """Write a report to the files that --html and --markdown name."""
    for file, render in ((options.html, html), (options.markdown, markdown)):
        if file:
            write_report(file, render(report), screen)


def write_report(file: Path, content: str, screen: Screen) -> None:
    """Write a report and print its path."""
    file.write_text(content, encoding="utf-8")
    screen.show_progress(f"written: {file}")
