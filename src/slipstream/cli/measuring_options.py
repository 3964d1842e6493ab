"""What `bench` and `compare` have in common: which prompts, how many at once, where to report."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.measuring.bench import Bench, Conditions
from slipstream.measuring.workloads import Workload, load_workload, names_tasks
from slipstream.planning import LaunchPlan

WORKLOAD = ("code", "reasoning", "dialogue", "prose")


def add_workload(parser: argparse.ArgumentParser, *, prompts: int, loads: bool = True) -> None:
    """Declare what is asked, and how; `loads` are the concurrencies to ask it at."""
    parser.add_argument(
        "--workload",
        metavar="NAME|FILE",
        nargs="+",
        default=WORKLOAD,
        help="classes of prompts, `all`, `agent` (tasks of several turns with tools), a JSONL "
        "file, a recording, or humaneval:FILE and the like",
    )
    if loads:
        parser.add_argument(
            "--concurrency",
            type=whole_number,
            nargs="+",
            default=(1, 4, 8),
            help="concurrent requests or tasks, one load for each number (default 1 4 8; 1 for "
            "agent)",
        )
        parser.add_argument(
            "--tool-choice",
            choices=("auto", "named"),
            default="auto",
            help="how tasks ask for tool calls, of a server that parses them: auto as agents do, "
            "or each by its name (default auto)",
        )
    parser.add_argument(
        "--prompts",
        type=whole_number,
        default=prompts,
        help=f"prompts or tasks per class (default {prompts})",
    )
    parser.add_argument(
        "--max-tokens", type=whole_number, default=128, help="tokens per answer (default 128)"
    )
    parser.add_argument(
        "--thinking", choices=("on", "off"), help="thinking, where the chat template has a switch"
    )
    parser.add_argument(
        "--seed", type=natural_number, default=0, help="seed of all that is drawn (default 0)"
    )


def add_reports(parser: argparse.ArgumentParser) -> None:
    """Declare the files that a report can be written to."""
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with pictures")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables")


def read_workload(options: argparse.Namespace, context: int | None) -> Workload:
    """Gather the prompts that the options name."""
    return load_workload(
        list(options.workload),
        most_a_kind=options.prompts,
        seed=options.seed,
        context=context,
        max_tokens=options.max_tokens,
    )


def read_concurrencies(options: argparse.Namespace) -> Sequence[int]:
    """Return the loads to measure; tasks are asked one after the other unless more are wanted."""
    chosen: Sequence[int] = options.concurrency
    return chosen if isinstance(chosen, list) or not names_tasks(options.workload) else (1,)


def read_thinking(options: argparse.Namespace) -> bool | None:
    """Say whether the model is to think, None to leave it to its template."""
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
    """Write down all that the figures will depend on."""
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


def require_writable(*files: Path | None) -> None:
    """Refuse a report that could not be written, before the hours and not after."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise InvalidInputError(
                f"there is no folder {file.absolute().parent}",
                hint=f"mkdir -p {file.absolute().parent}",
            )


def write_report(file: Path, content: str, screen: Screen) -> None:
    """Write a report, and say where."""
    file.write_text(content, encoding="utf-8")
    screen.show_progress(f"written: {file}")
