"""`slipstream verify`: whether the text is the same with speculation, or what a cache costs."""

import argparse
import os
from pathlib import Path

from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.measuring.measuring_options import (
    add_reports,
    add_seed,
    add_thinking,
    describe_conditions,
    find_engine_host,
    find_log_folder,
    read_thinking,
    read_workload,
    take_drafting_plan,
)
from slipstream.cli.options import OptionAdder, add_accept_changes
from slipstream.cli.planning.plan import TARGET_OR_PLAN_HELP, add_plan_options
from slipstream.cli.planning.saved_plans import add_allow, take_plan
from slipstream.cli.reports import require_writable, show_report
from slipstream.cli.screen import Screen
from slipstream.cli.weights import WeightsOnDisk
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host
from slipstream.measuring.bench import Bench
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.verifying.cache_cost import CacheArm, CacheCost, CacheVerification
from slipstream.measuring.verifying.certificate import ArmName, Certificate
from slipstream.measuring.verifying.served_check import check_served
from slipstream.measuring.verifying.verification import (
    SAMPLES,
    Verification,
    split_requests,
    start_in_turn,
)
from slipstream.planning import LaunchPlan
from slipstream.reporting.measuring.cache_cost import describe_cache_cost, render_cache_cost_html
from slipstream.reporting.measuring.certificate import describe_certificate, render_certificate_html
from slipstream.reporting.report import render_text
from slipstream.serving.access.keys import borrow_key
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.run import RunFolder, find_run, find_runs_root, is_alive
from slipstream.serving.supervision.engine_process import require_accepted

WORKLOAD = ("code", "reasoning", "dialogue", "prose", "translation", "tools", "json")
USUAL_CONCURRENCY = 8
PROMPTS = 24
RUN_PROMPTS = 2


EXAMPLES = """\
# compare the text of a model with and without its drafter; exit code 4 if it differs
slipstream verify Qwen/Qwen3-8B
# a quick check of one drafter, with the certificate as an HTML page
slipstream verify Qwen/Qwen3-8B --drafter z-lab/Qwen3-8B-DFlash-b16 --prompts 4 --html verify.html
# what a quantized KV cache does to the text, compared with the model's own
slipstream verify Qwen/Qwen3-8B --cache --workload prose long-4k -- --kv-cache-dtype fp8
"""


def add_arguments(add: OptionAdder) -> None:
    add("TARGET", f"{TARGET_OR_PLAN_HELP}; or the id or folder of a run, for a short check of it")
    add(
        "--cache",
        "measure what the plan's quantized KV cache costs, compared with the model's own cache, "
        "instead of whether drafts change the text",
    )
    add = add.group("prompts")
    add(
        "--workload NAME|FILE ...",
        "kinds of prompts, a JSONL file or a recording",
        default=WORKLOAD,
    )
    add("--prompts N", f"prompts per kind (default {PROMPTS}; for a run {RUN_PROMPTS})")
    add("--max-tokens TOKENS", "maximum tokens per answer", default=64)
    add(
        "--samples N",
        "answers sampled at temperature 1 to compare their distribution",
        default=SAMPLES,
    )
    add_thinking(add)
    add_seed(add)
    add_accept_changes(add)
    add_plan_options(add)
    add_allow(add)
    add_reports(add)
    add.parser.usage = f"slipstream verify TARGET [options] {ENGINE_ARGUMENTS}"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Ask both engines and print a certificate; the exit code is 4 if the text changes."""
    require_writable(options.html, options.markdown)
    folder = find_run(options.target, find_runs_root(os.environ))
    if folder is not None:
        return _check_run(folder, options, screen)
    options.prompts = options.prompts or PROMPTS
    host = find_engine_host()
    if options.cache:
        return _measure_cache(options, host, screen)
    plan = take_drafting_plan(options, host, screen, to="verify")
    certificate = examine(options, host, plan, screen)
    report = describe_certificate(certificate)
    text = f"{certificate.outcome.upper()}: {render_text(report)}"
    show_report(certificate, report, render_certificate_html, options, screen, text)
    return ExitCode.DONE if certificate.passed else ExitCode.GATE_MISSED


def examine(
    options: argparse.Namespace,
    host: Host,
    plan: LaunchPlan,
    screen: Screen,
    logs: Path | None = None,
) -> Certificate:
    """Ask the plan's engine with and without drafts, and score the answers."""
    if plan.settings.speculation is not None and plan.settings.speculation.lossy is not None:
        raise InvalidInputError(
            f"rejection_sample_method {plan.settings.speculation.lossy} changes the text by design",
            hint="leave rejection_sample_method out: what changes the text is not certified",
        )
    # One token of the context is for the scoring.
    workload = read_workload(options, None if plan.context is None else plan.context - 1)
    plan = WeightsOnDisk(screen, os.environ, options.accept_changes).localize(plan)
    plans: dict[ArmName, LaunchPlan] = {"plain": plan.without_drafts(), "drafted": plan}
    verification = Verification(
        workload=workload,
        concurrency=plan.sequences or USUAL_CONCURRENCY,
        thinking=read_thinking(options),
        seed=options.seed,
        reasoning=plan.settings.reasoning_parser is not None,
        samples=options.samples,
        progress=screen.show_progress,
    )
    concurrencies = (verification.concurrency,)
    bench = Bench(workload, concurrencies, verification.thinking, prefix_cache="shared")
    conditions = describe_conditions(options, bench, plan, host)
    logs = logs or find_log_folder("verify")
    with screen.busy("verifying"):
        findings = verification.run(
            start_in_turn(plans, logs=logs, environment=os.environ, progress=verification.progress)
        )
    return Certificate.make(findings, conditions, verification.concurrency)


def _measure_cache(options: argparse.Namespace, host: Host, screen: Screen) -> ExitCode:
    """Have the plan's engine answer with its quantized cache and with the model's own."""
    plan = take_plan(options, host, screen)
    require_accepted(plan)
    kv_dtype = plan.settings.kv_dtype.value if plan.settings.kv_dtype else "auto"
    if kv_dtype in ("auto", "bfloat16", "float16"):
        raise InvalidInputError(
            f"the plan for {plan.target} has no quantized cache: its type is {kv_dtype}",
            hint=f"slipstream verify {plan.target} --cache -- --kv-cache-dtype fp8",
        )
    workload = read_workload(options, None if plan.context is None else plan.context - 1)
    requests, barred = split_requests(workload, read_thinking(options))
    if barred:
        why = "a grammar or a penalty may exclude the best token"
        screen.show_progress(f"{len(barred)} prompts are left out: {why}")
    plan = WeightsOnDisk(screen, os.environ, options.accept_changes).localize(plan)
    plans: dict[CacheArm, LaunchPlan] = {"quantized": plan, "plain": plan.with_plain_cache()}
    verification = CacheVerification(
        requests=requests,
        concurrency=plan.sequences or USUAL_CONCURRENCY,
        progress=screen.show_progress,
    )
    bench = Bench(
        workload, (verification.concurrency,), read_thinking(options), prefix_cache="shared"
    )
    conditions = describe_conditions(options, bench, plan, host)
    logs = find_log_folder("verify")
    with screen.busy("verifying"):
        kinds = verification.run(
            start_in_turn(plans, logs=logs, environment=os.environ, progress=verification.progress)
        )
    cost = CacheCost.make(kv_dtype, kinds, conditions, verification.concurrency)
    show_report(cost, describe_cache_cost(cost), render_cache_cost_html, options, screen)
    return ExitCode.DONE if cost.passed else ExitCode.GATE_MISSED


def _check_run(folder: RunFolder, options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Have a run score its own text, with a key that it takes for a quarter of an hour."""
    if options.html or options.markdown or options.raw or options.cache:
        raise UsageError(
            "the short check of a run writes no page and starts no engine",
            hint="for a full certificate: slipstream verify PLAN",
        )
    run = folder.read()
    if run.url is None or not is_alive(run.supervisor):
        raise InvalidInputError(f"{run.id} is not serving", hint="slipstream status")
    options.prompts = options.prompts or RUN_PROMPTS
    with borrow_key(run.terms.needed_keys) as key:
        check = check_served(
            Endpoint(run.url, key=key, certificate=TlsCertificate.of(run.plan)),
            read_workload(options, None if run.plan.context is None else run.plan.context - 1),
            run=run.id,
            drafted=run.plan.is_drafted_by_model,
            max_tokens=options.max_tokens,
            progress=screen.show_progress,
        )
    screen.show_data(text=check.sentence, document=check.to_json())
    return ExitCode.DONE if check.passed else ExitCode.GATE_MISSED
