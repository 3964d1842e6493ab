"""What the measuring verbs share: options, the machine, the plan and the conditions."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.cli.options import OptionAdder, natural_number
from slipstream.cli.planning.saved_plans import take_plan
from slipstream.cli.screen import Screen
from slipstream.engines.vllm import find_versions, require_engine
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.measuring.bench import Bench, Conditions
from slipstream.measuring.workloads import Workload, load_workload, names_tasks
from slipstream.planning import LaunchPlan
from slipstream.reporting.measuring.bench import render_cell_line
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.user_folders import slipstream_cache

WORKLOAD = ("code", "reasoning", "dialogue", "prose")


def add_workload(add: OptionAdder, *, prompts: int, loads: bool = True) -> OptionAdder:
    """Add the group of options for prompts, and with `loads` the concurrencies to measure at."""
    add = add.group("prompts and load")
    add(
        "--workload NAME|FILE ...",
        "kinds of prompts: a built-in one, `all`, `agent` (tasks of several turns with tools), a "
        "JSONL file, a recording, or a published set such as humaneval:FILE",
        default=WORKLOAD,
    )
    if loads:
        add(
            "--concurrency N ...",
            "numbers of concurrent requests or tasks to measure (default 1 4 8, for agent 1)",
            default=(1, 4, 8),
        )
        add(
            "--tool-choice",
            "tool_choice of requests in tasks, if the server parses tool calls: auto, or named "
            "for the expected tool",
            default="auto",
            choices=("auto", "named"),
        )
    add("--prompts N", "prompts or tasks per kind", default=prompts)
    add("--max-tokens TOKENS", "maximum tokens per answer", default=128)
    add_thinking(add)
    add_seed(add)
    return add


def add_thinking(add: OptionAdder) -> None:
    """Add the option that sets the chat template's switch for thinking."""
    add(
        "--thinking",
        "turn thinking on or off, if the chat template can (default: the template's)",
        choices=("on", "off"),
    )


def add_seed(add: OptionAdder) -> None:
    """Add the seed of everything that is drawn at random."""
    add("--seed N", "random seed", natural_number, 0)


def add_reports(add: OptionAdder) -> None:
    """Add the options for report files."""
    add = add.group("reports")
    add("--html FILE", "write the report as an HTML page with charts")
    add("--markdown FILE", "write the report's tables as Markdown")


def read_workload(options: argparse.Namespace, context: int | None) -> Workload:
    """Return the prompts that the options select."""
    return load_workload(
        list(options.workload),
        most_per_kind=options.prompts,
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


def make_bench(
    options: argparse.Namespace, screen: Screen, context: int | None, **more: Any
) -> Bench:
    """Return how to measure with the prompts that the options select, with progress on a screen."""

    def tick(kind: str, concurrency: int, done: int, total: int) -> None:
        screen.count(f"{kind}, concurrency {concurrency}", done, total, "requests")

    return Bench(
        workload=read_workload(options, context),
        thinking=read_thinking(options),
        on_cell=lambda cell: screen.show_progress(render_cell_line(cell)),
        tick=tick,
        **more,
    )


def describe_conditions(
    options: argparse.Namespace,
    bench: Bench,
    plan: LaunchPlan | None,
    host: Host | None,
    **more: Any,
) -> Conditions:
    """Return the conditions under which the figures are measured, by default here and now."""
    if plan is not None:
        more = {"model": plan.target, "versions": find_versions(), **more}
    return Conditions(
        at=datetime.now(UTC),
        command=shlex.join(["slipstream", *sys.argv[1:]]),
        plan=plan,
        host=host,
        workload=bench.workload.name,
        workload_sha256=bench.workload.sha256,
        left_out=bench.workload.left_out,
        seed=options.seed,
        max_tokens=options.max_tokens,
        thinking=bench.thinking,
        prefix_cache=bench.prefix_cache,
        arrivals_per_second=bench.arrivals_per_second,
        tool_choice=bench.tool_choice if bench.workload.has_tasks else None,
        **more,
    )


def find_engine_host(extra: str = "cpu") -> Host:
    """Return this machine, which needs an engine to measure with."""
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    require_engine(host, extra=extra)
    return host


def find_log_folder(verb: str) -> Path:
    """Return where the engines that a verb starts now log to."""
    return slipstream_cache(os.environ) / verb / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"


def take_drafting_plan(
    options: argparse.Namespace, host: Host, screen: Screen, *, to: str
) -> LaunchPlan:
    """Return the plan that the options name or make, which has to draft."""
    plan = take_plan(options, host, screen)
    require_accepted(plan)
    if plan.speculation is None or (to == "tune" and plan.drafter is None):
        raise InvalidInputError(
            f"the plan for {plan.target} drafts nothing: there is nothing to {to}",
            hint="name a drafter: --drafter",
        )
    return plan
