"""Options that the measuring verbs share: prompts, load and report files."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.measuring.bench import Bench, Conditions
from slipstream.measuring.workloads import Workload, load_workload, names_tasks
from slipstream.planning import LaunchPlan

Report = TypeVar("Report")
WORKLOAD = ("code", "reasoning", "dialogue", "prose")


def add_workload(
    parser: argparse.ArgumentParser, *, prompts: int, loads: bool = True
) -> argparse._ArgumentGroup:
    """Add the group of options for prompts, and with `loads` the concurrencies to measure at."""
    group = parser.add_argument_group("prompts and load")
    group.add_argument(
        "--workload",
        metavar="NAME|FILE",
        nargs="+",
        default=WORKLOAD,
        help="kinds of prompts, `all`, `agent` (tasks of several turns with tools), a JSONL file, "
        "a recording, or humaneval:FILE and the like "
        f"(default {' '.join(WORKLOAD)})",
    )
    if loads:
        group.add_argument(
            "--concurrency",
            metavar="N",
            type=whole_number,
            nargs="+",
            default=(1, 4, 8),
            help="concurrent requests or tasks, one load per number (default 1 4 8, for agent 1)",
        )
        group.add_argument(
            "--tool-choice",
            choices=("auto", "named"),
            default="auto",
            help="tool_choice in requests of tasks, if the server parses tool calls: auto, or the "
            "expected tool by name (default auto)",
        )
    group.add_argument(
        "--prompts",
        metavar="N",
        type=whole_number,
        default=prompts,
        help=f"prompts or tasks per kind (default {prompts})",
    )
    group.add_argument(
        "--max-tokens",
        metavar="TOKENS",
        type=whole_number,
        default=128,
        help="longest answer (default 128)",
    )
    add_thinking(group)
    add_seed(group)
    return group


def add_thinking(parser: argparse._ActionsContainer) -> None:
    """Add the option that sets the chat template's switch for thinking."""
    parser.add_argument(
        "--thinking",
        choices=("on", "off"),
        help="whether the model thinks, if its chat template has a switch (default: the "
        "template's)",
    )


def add_seed(parser: argparse._ActionsContainer) -> None:
    """Add the seed of everything that is drawn at random."""
    parser.add_argument(
        "--seed",
        metavar="N",
        type=natural_number,
        default=0,
        help="seed of everything that is random (default 0)",
    )


def add_reports(parser: argparse.ArgumentParser) -> None:
    """Add the options for report files."""
    group = parser.add_argument_group("reports")
    group.add_argument(
        "--html", metavar="FILE", type=Path, help="write the report as an HTML page with charts"
    )
    group.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write the report's tables as Markdown"
    )


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
