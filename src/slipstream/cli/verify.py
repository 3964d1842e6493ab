"""`slipstream verify`: is the text really the same with speculation?"""

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime

from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.measuring_options import (
    add_reports,
    read_thinking,
    read_workload,
    require_writable,
    write_report,
)
from slipstream.cli.plan import add_wishes, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.installed import find_versions, require_engine
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.measuring.verifying.certificate import ArmName, Certificate, VerifiedUnder
from slipstream.measuring.verifying.verification import SAMPLES, Exam, start_in_turn
from slipstream.planning import LaunchPlan
from slipstream.reporting.pages.certificate import (
    render_certificate_html,
    render_certificate_markdown,
)
from slipstream.reporting.text.certificate import render_certificate_text
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.user_folders import slipstream_cache

WORKLOAD = ("code", "reasoning", "dialogue", "prose", "translation", "tools", "json")
USUAL_CONCURRENCY = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `verify` takes."""
    parser.add_argument("target", metavar="TARGET", help="a folder, a hub model or a saved plan")
    add_wishes(parser)
    parser.add_argument(
        "--workload",
        metavar="NAME|FILE",
        nargs="+",
        default=WORKLOAD,
        help="classes of prompts, a JSONL file, a recording; default: all but the long ones",
    )
    parser.add_argument("--prompts", type=whole_number, default=24, help="a class")
    parser.add_argument("--max-tokens", type=whole_number, default=64, help="of an answer")
    parser.add_argument("--samples", type=whole_number, default=SAMPLES, help="at temperature 1")
    parser.add_argument("--thinking", choices=("on", "off"), help="if the template can be told")
    parser.add_argument("--seed", type=natural_number, default=0)
    add_accept_changes(parser)
    add_reports(parser)
    parser.usage = "slipstream verify TARGET [options] [-- ENGINE ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Ask both engines in turn; text that speculation changes leaves with 4."""
    require_writable(options.html, options.markdown)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    require_engine(host)
    certificate = examine(options, host, _take_drafting_plan(options, host), screen)
    return _show(certificate, options, screen)


def examine(
    options: argparse.Namespace, host: Host, plan: LaunchPlan, screen: Screen
) -> Certificate:
    """Ask the plan's engine with and without drafts, and judge the answers."""
    now = datetime.now(UTC)
    # One token of the context is the judge's.
    workload = read_workload(options, None if plan.context is None else plan.context - 1)
    plan = Weights(screen, os.environ, options.accept_changes).localize(plan)
    plans: dict[ArmName, LaunchPlan] = {"plain": plan.without_drafts(), "drafted": plan}
    exam = Exam(
        workload=workload,
        concurrency=plan.sequences or USUAL_CONCURRENCY,
        thinking=read_thinking(options),
        seed=options.seed,
        reasoning=plan.settings.reasoning_parser is not None,
        samples=options.samples,
        say=screen.show_progress,
    )
    conditions = VerifiedUnder(
        at=now,
        command=shlex.join(["slipstream", *sys.argv[1:]]),
        versions=find_versions(),
        host=host,
        plan=plan,
        plain_argv=tuple(plans["plain"].argv()),
        drafted_argv=tuple(plans["drafted"].argv()),
        workload=workload.name,
        workload_sha256=workload.sha256,
        left_out=workload.left_out,
        max_tokens=options.max_tokens,
        concurrency=exam.concurrency,
        thinking=exam.thinking,
        seed=options.seed,
    )
    logs = slipstream_cache(os.environ) / "verify" / f"{now:%Y%m%d-%H%M%S}"
    findings = exam.take(start_in_turn(plans, logs=logs, environment=os.environ, say=exam.say))
    return Certificate.make(findings, conditions)


def _show(certificate: Certificate, options: argparse.Namespace, screen: Screen) -> ExitCode:
    screen.show_data(text=render_certificate_text(certificate), document=certificate.to_json())
    if options.html:
        write_report(options.html, render_certificate_html(certificate), screen)
    if options.markdown:
        write_report(options.markdown, render_certificate_markdown(certificate), screen)
    return ExitCode.DONE if certificate.passed else ExitCode.GATE_MISSED


def _take_drafting_plan(options: argparse.Namespace, host: Host) -> LaunchPlan:
    plan = take_plan(options, host)
    require_accepted(plan)
    if plan.drafter is None:
        raise InvalidInputError(
            f"the plan for {plan.target} has no drafter to verify", hint="name one with --drafter"
        )
    return plan
