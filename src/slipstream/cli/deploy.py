"""`slipstream deploy`: a plan as files for a platform, a check of such files, a pod's start."""

import argparse
import os
import sys
from pathlib import Path

from pydantic import ValidationError

from slipstream.atomic_files import write_atomically
from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.plan import PLAN_HINT, add_wishes, find_host, make_plan, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights
from slipstream.deployment.deployment import Deployment, DeploymentWishes
from slipstream.deployment.hazards import HazardList, find_hazards
from slipstream.deployment.manifests import read_manifests, render_manifests
from slipstream.deployment.other_stacks import STACKS, translate
from slipstream.deployment.ranks import make_rank_plan
from slipstream.deployment.rules import make_deployment
from slipstream.deployment.values import render_values
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.planning import LaunchPlan
from slipstream.records import describe_faults, read_record
from slipstream.reporting.text.deployment import render_hazards

ACTIONS = ("kubernetes", "check", "prepare")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `deploy` takes."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="kubernetes: write files for a plan; check: find what is unsafe in manifests; "
        "prepare: fetch and check a plan's weights, as a pod does before its engine",
    )
    parser.add_argument(
        "target",
        metavar="PLAN|TARGET|FILE",
        help="a saved plan, a model, or manifests (- is stdin)",
    )
    add_wishes(parser)
    parser.add_argument("--host", metavar="NAME|FILE", help="plan for another machine")
    written = parser.add_argument_group("kubernetes")
    written.add_argument(
        "--for",
        dest="stack",
        choices=("helm", *STACKS),
        default="helm",
        help="whose files: values of our own chart (default), or of another stack",
    )
    written.add_argument(
        "--raw",
        dest="rendered",
        action="store_true",
        help="write the chart's manifests, made by helm",
    )
    written.add_argument("--out", metavar="PATH", type=Path, help="write there, not to stdout")
    written.add_argument("--name", help="of the release; default from the model's name")
    written.add_argument("--namespace", default="default", help="of the manifests")
    written.add_argument(
        "--image", default=None, help="REPOSITORY:TAG[@sha256:...]; default slipstream:cuda or :cpu"
    )
    written.add_argument("--replicas", type=whole_number, default=1, help="default 1")
    written.add_argument("--max-replicas", type=whole_number, help="scale up to so many, with KEDA")
    written.add_argument("--drain", type=natural_number, metavar="SECONDS", help="default 30")
    written.add_argument("--fleet", default="default", help="label of all series (default default)")
    written.add_argument("--group", default="default", help="label of all series (default default)")
    prepared = parser.add_argument_group("prepare")
    prepared.add_argument("--rank", type=natural_number, help="of this machine among several")
    prepared.add_argument("--head", metavar="ADDRESS", help="of the first machine")
    parser.usage = "slipstream deploy kubernetes|check|prepare PLAN|TARGET|FILE [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write, check or prepare."""
    if options.action == "check":
        return _check(options.target, screen)
    if options.action == "prepare":
        return _prepare(options, screen)
    return _write(options, screen)


def _write(options: argparse.Namespace, screen: Screen) -> ExitCode:
    host = find_host(options.host)
    options.default_thinking, options.pictures = None, False
    plan = take_plan(options, host) if Path(options.target).exists() else make_plan(options, host)
    deployment = make_deployment(plan, _read_wishes(options, plan))
    if options.rendered and options.stack != "helm":
        raise UsageError("--raw is the chart's", hint="slipstream deploy kubernetes PLAN --raw")
    for warning in deployment.warnings:
        screen.show_progress(f"warning: {warning}")
    text = render_values(deployment)
    if options.rendered:
        text = render_manifests(deployment.name, options.namespace, text)
    elif options.stack != "helm":
        text = _translate(deployment, options, text, screen)
    if options.out is None:
        screen.show_data(text=text.rstrip("\n"), document=deployment.to_json())
    else:
        _save(options.out, text)
        screen.show_data(text=str(options.out), document=deployment.to_json())
    return ExitCode.DONE


def _read_wishes(options: argparse.Namespace, plan: LaunchPlan) -> DeploymentWishes:
    default = "slipstream:cpu" if plan.capability is None else "slipstream:cuda"
    try:
        return DeploymentWishes(
            name=options.name,
            image=options.image or default,
            replicas=options.replicas,
            highest_replicas=options.max_replicas,
            drain_seconds=options.drain,
            fleet=options.fleet,
            group=options.group,
        )
    except ValidationError as fault:
        raise UsageError(
            describe_faults(fault)[0].replace("Value error, ", "--"),
            hint="slipstream deploy --help",
        ) from fault


def _translate(
    deployment: Deployment, options: argparse.Namespace, values: str, screen: Screen
) -> str:
    manifests = render_manifests(deployment.name, options.namespace, values)
    documents = read_manifests(manifests, "the chart")
    translation = translate(options.stack, deployment, documents)
    for line in translation.missing:
        screen.show_progress(f"{options.stack} cannot carry {line}")
    return translation.text


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), mode=0o644)
    except OSError as fault:
        raise InvalidInputError(
            f"cannot write {path}: {fault.strerror}", hint="--out names another file"
        ) from fault


def _check(target: str, screen: Screen) -> ExitCode:
    """Show what is unsafe in manifests; anything that is found misses the gate."""
    try:
        text = sys.stdin.read() if target == "-" else Path(target).read_text()
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidInputError(
            f"cannot read {target}: {fault}", hint="slipstream deploy check manifests.yaml"
        ) from fault
    documents = read_manifests(text, target)
    found = HazardList(objects=len(documents), hazards=find_hazards(documents))
    screen.show_data(text=render_hazards(found), document=found.to_json())
    return ExitCode.GATE_MISSED if found.hazards else ExitCode.DONE


def _prepare(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Have a plan's weights here and checked, and write a rank's plan if it is one of several."""
    plan = read_record(Path(options.target), LaunchPlan, hint=PLAN_HINT)
    ranked = (options.rank, options.head, options.out)
    if any(part is not None for part in ranked) and any(part is None for part in ranked):
        raise UsageError(
            "--rank, --head and --out go together",
            hint="slipstream deploy prepare PLAN --rank 1 --head ADDRESS --out FILE",
        )
    local = Weights(screen, os.environ).localize(plan)
    if options.rank is not None:
        _save(options.out, make_rank_plan(plan, options.rank, options.head).to_json())
    models = [local.settings.model.value, *filter(None, [local.drafter])]
    lines = [f"{model} is here and checked" for model in models]
    screen.show_data(text="\n".join(lines), document=local.to_json())
    return ExitCode.DONE
