"""`slipstream bench`: the speed of a server by kind of prompt and concurrency."""

import argparse
import os
from dataclasses import replace

from slipstream.cli.measuring.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    make_bench,
    read_concurrencies,
)
from slipstream.cli.options import OptionAdder, add_server, positive_number
from slipstream.cli.reports import require_writable, show_report
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.measuring.bench import BenchReport, PrefixCache, ToolChoice, list_cells
from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import KEY_VARIABLE, Endpoint, read_key, read_served_model
from slipstream.measuring.client.load import run_closed_loop
from slipstream.measuring.machine_watch import make_watch
from slipstream.measuring.workloads import Workload, names_tasks
from slipstream.reporting.measuring.bench import describe_bench, render_bench_html
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.run import find_runs_root
from slipstream.serving.selection import find_server
from slipstream.serving.supervision.engine_session import measure_session

EXAMPLES = """\
# the newest run, at concurrency 1 and 16
slipstream bench --concurrency 1 16
# any OpenAI-compatible server, on prompts of your own
slipstream bench http://localhost:8000 --workload prompts.jsonl --html bench.html
"""


def add_arguments(add: OptionAdder) -> None:
    add_server(add)
    add("--key FILE", f"file with the server's API key (default: the variable {KEY_VARIABLE})")
    add = add_workload(add, prompts=24)
    add(
        "--rate R",
        "mean requests per second, at random times, instead of --concurrency",
        positive_number,
    )
    add_reports(add)
    add.parser.usage = "slipstream bench [URL|RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure a server and print the report."""
    require_writable(options.html, options.markdown)
    _check_rate(options)
    hint = "name a server as http://HOST:PORT, or slipstream serve TARGET"
    url, served = find_server(find_runs_root(os.environ), options.server, hint=hint)
    certificate = TlsCertificate.of(served.plan) if served else None
    endpoint = Endpoint(url, key=read_key(options.key, os.environ), certificate=certificate)
    model, context = read_served_model(endpoint)
    engine = served.engine if served else None
    bench = make_bench(
        options,
        screen,
        context,
        concurrencies=read_concurrencies(options),
        arrivals_per_second=options.rate,
        seed=options.seed,
        prefix_cache=_find_cache_handling(endpoint),
        measure_memory=lambda: None if engine is None else measure_session(engine),
    )
    workload = bench.workload
    bench = replace(bench, tool_choice=_find_tool_choice(endpoint, workload, options.tool_choice))
    what = "turns" if workload.has_tasks else "prompts"
    screen.begin("warming up")
    screen.show_progress(f"warming up, then measuring {len(workload.prompts)} {what}")
    warm = bench.warm_up(endpoint)
    watch = make_watch(served.host if served else None)
    # Of a server that somebody else started, it is not known which processes are its own.
    before = watch.begin() if engine else None
    loads, samples = bench.measure(endpoint)
    machine = watch.end(before, [engine.pid] if engine else [])
    screen.rest()
    conditions = describe_conditions(
        options,
        bench,
        served.plan if served else None,
        served.host if served else None,
        model=model,
        versions=served.versions if served else {},
        start_seconds=served.measurements.get("ready_seconds") if served else None,
    )
    report = BenchReport(
        conditions=conditions,
        warm_up=warm,
        cells=tuple(list_cells(loads, samples)),
        samples=tuple(samples),
        machine=machine,
    )
    show_report(report, describe_bench(report), render_bench_html, options, screen)
    return ExitCode.DONE


def _check_rate(options: argparse.Namespace) -> None:
    """Raise if --rate was combined with what it excludes."""
    if options.rate is not None and isinstance(options.concurrency, list):
        raise UsageError(
            "--rate and --concurrency cannot be combined",
            hint=f"slipstream bench --rate {options.rate:g}",
        )
    if options.rate is not None and names_tasks(options.workload):
        raise UsageError(
            "--rate does not apply to tasks, whose turns follow one another",
            hint="slipstream bench --workload agent --concurrency 1 4",
        )


def _find_cache_handling(endpoint: Endpoint) -> PrefixCache:
    """Return whether the server accepts cache salts, which bypass the prefix cache."""
    salted = Request(prompt_ids=(1, 2, 3), max_tokens=1, extra={"cache_salt": "slipstream"})
    return "cold" if _accepts(endpoint, salted) else "shared"


def _find_tool_choice(endpoint: Endpoint, workload: Workload, wanted: ToolChoice) -> ToolChoice:
    """Return how to request tool calls; `none` if the server does not parse them."""
    calling = [prompt for prompt in workload.prompts if prompt.expected_tool]
    if not calling:
        return "none"
    extra = {"tools": calling[0].extra["tools"], "tool_choice": "auto"}
    request = Request(messages=({"role": "user", "content": "hi"},), max_tokens=1, extra=extra)
    return wanted if _accepts(endpoint, request) else "none"


def _accepts(endpoint: Endpoint, request: Request) -> bool:
    (sample,) = run_closed_loop(endpoint, [request], concurrency=1)
    return sample.error is None
