"""`slipstream deploy`: write a plan as files for Kubernetes, check such files, prepare a pod."""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from slipstream.atomic_files import write_atomically
from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.plan import PLAN_HINT, add_wishes, find_host, plan_for, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights
from slipstream.deployment.deployment import Deployment, DeploymentList, DeploymentWishes
from slipstream.deployment.hazards import examine
from slipstream.deployment.manifests import read_manifests, render_manifests
from slipstream.deployment.other_stacks import STACKS, translate
from slipstream.deployment.pod_group import make_rank_plan
from slipstream.deployment.rules import make_deployment
from slipstream.deployment.values import render_values
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.fleet.planning import spread_wishes
from slipstream.fleet.record import Fleet, read_fleet
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan
from slipstream.records import describe_faults, read_record
from slipstream.reporting.text.deployment import render_hazards
from slipstream.serving.group.heartbeats import MOST_BYTES, read_secret

ACTIONS = ("kubernetes", "check", "prepare")


EXAMPLES = """\
# write the values of the Helm chart for a saved plan, for two replicas
slipstream deploy kubernetes plan.json --replicas 2 --out values.yaml
# render the manifests for a DGX Spark, and check them
slipstream deploy kubernetes Qwen/Qwen3-8B --host gb10 --raw --out manifests.yaml
slipstream deploy check manifests.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deploy`."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        metavar="ACTION",
        help="kubernetes: write files for a plan; check: list what is unsafe in manifests; "
        "prepare: download and check the weights of a plan, as a pod does before its engine starts",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="file of a saved plan, hub name of a model, or fleet.toml; for check a file of "
        "manifests (- is stdin)",
    )
    add_wishes(parser)
    _add_file_options(parser.add_argument_group("kubernetes: files"))
    _add_pod_options(parser.add_argument_group("kubernetes: pods"))
    prepared = parser.add_argument_group("prepare, for one machine of several")
    prepared.add_argument("--rank", metavar="N", type=natural_number, help="rank of this machine")
    prepared.add_argument("--head", metavar="ADDRESS", help="host name of the machine of rank 0")
    prepared.add_argument(
        "--interface", metavar="NAME", help="network interface to the other machines"
    )
    prepared.add_argument(
        "--secret", metavar="FILE", type=Path, help="file of the secret that all machines share"
    )
    parser.usage = "slipstream deploy kubernetes|check|prepare TARGET [options]"


def _add_file_options(written: argparse._ArgumentGroup) -> None:
    written.add_argument(
        "--host",
        metavar="NAME|FILE",
        help="machine to plan for, a known name such as gb10 or a file written by "
        "`slipstream probe --json` (default: this machine)",
    )
    written.add_argument(
        "--for",
        dest="stack",
        choices=("helm", *STACKS),
        default="helm",
        metavar="STACK",
        help=f"whose files to write: helm, {', '.join(STACKS)} (default helm: values of our chart)",
    )
    written.add_argument(
        "--raw",
        dest="rendered",
        action="store_true",
        help="write the chart's manifests, rendered by helm",
    )
    written.add_argument(
        "--out",
        metavar="PATH",
        type=Path,
        help="file to write, for fleet.toml a folder (default: stdout)",
    )
    written.add_argument("--name", metavar="NAME", help="release name (default: from the model)")
    written.add_argument(
        "--namespace",
        metavar="NAME",
        default="default",
        help="namespace of the manifests (default default)",
    )


def _add_pod_options(written: argparse._ArgumentGroup) -> None:
    written.add_argument(
        "--image",
        metavar="IMAGE",
        help="REPOSITORY:TAG[@sha256:...] (default slipstream:cuda, or slipstream:cpu)",
    )
    written.add_argument(
        "--replicas",
        metavar="N",
        type=whole_number,
        default=1,
        help="copies of the model (default 1)",
    )
    written.add_argument(
        "--max-replicas",
        metavar="N",
        type=whole_number,
        help="scale up to this many copies with KEDA (default: no scaling)",
    )
    written.add_argument(
        "--drain",
        metavar="SECONDS",
        type=natural_number,
        help="time that open requests have to finish when a pod is deleted (default 30)",
    )
    written.add_argument(
        "--fleet",
        metavar="NAME",
        default="default",
        help="label `fleet` of all metrics (default default)",
    )
    written.add_argument(
        "--group",
        metavar="NAME",
        default="default",
        help="label `group` of all metrics (default default)",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write, check or prepare."""
    if options.action == "check":
        return _check(options.target, screen)
    if options.action == "prepare":
        return _prepare(options, screen)
    if options.rendered and options.stack != "helm":
        raise UsageError(
            "--raw is for our own chart", hint="slipstream deploy kubernetes TARGET --raw"
        )
    host = find_host(options.host)
    if Path(options.target).suffix == ".toml":
        return _write_fleet(options, host, screen)
    plan = take_plan(options, host)
    deployment = make_deployment(plan, _read_wishes(options, plan))
    text = _render(deployment, options, screen)
    if options.out is None:
        screen.show_data(text=text.rstrip("\n"), document=deployment.to_json())
    else:
        _save(options.out, text)
        screen.show_data(text=str(options.out), document=deployment.to_json())
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _PlannedGroup:
    """A group of a fleet, planned for a kind of machine."""

    name: str
    plan: LaunchPlan


def _write_fleet(options: argparse.Namespace, host: Host, screen: Screen) -> ExitCode:
    """Write a release for each group of a fleet: in a cluster its machines have no names."""
    if options.out is None:
        raise UsageError(
            "a fleet has a file for each group", hint="slipstream deploy kubernetes FLEET --out DIR"
        )
    fleet = read_fleet(Path(options.target))
    deployments, written = [], []
    for group in _plan_groups(fleet, host):
        wishes = _read_wishes(options, group.plan).model_copy(
            update={"name": f"{fleet.name}-{group.name}", "fleet": fleet.name, "group": group.name}
        )
        wishes = DeploymentWishes.model_validate(wishes.model_dump())
        deployments.append(make_deployment(group.plan, wishes))
        written.append(options.out / f"{deployments[-1].name}.yaml")
        _save(written[-1], _render(deployments[-1], options, screen))
    document = DeploymentList(deployments=tuple(deployments)).to_json()
    screen.show_data(text="\n".join(map(str, written)), document=document)
    return ExitCode.DONE


def _plan_groups(fleet: Fleet, host: Host) -> Iterator[_PlannedGroup]:
    for name, group in fleet.groups.items():
        wishes = spread_wishes(fleet.find_wishes(name), group.machines, host)
        yield _PlannedGroup(name, plan_for(host, fleet.model.target, wishes))


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
        message = describe_faults(fault)[0].replace("Value error, ", "")
        raise UsageError(f"--{message}", hint="slipstream deploy --help") from fault


def _render(deployment: Deployment, options: argparse.Namespace, screen: Screen) -> str:
    for warning in deployment.warnings:
        screen.show_progress(f"warning: {warning}")
    values = render_values(deployment)
    if options.stack == "helm" and not options.rendered:
        return values
    manifests = render_manifests(deployment.name, options.namespace, values)
    if options.rendered:
        return manifests
    translation = translate(options.stack, deployment, read_manifests(manifests, "the chart"))
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
    found = examine(read_manifests(text, target))
    screen.show_data(text=render_hazards(found), document=found.to_json())
    return ExitCode.GATE_MISSED if found.hazards else ExitCode.DONE


def _prepare(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Have a plan's weights here and checked, and write a rank's plan if it is one of several."""
    plan = read_record(Path(options.target), LaunchPlan, hint=PLAN_HINT)
    ranked = (options.rank, options.head, options.secret, options.out)
    if any(part is not None for part in ranked) and any(part is None for part in ranked):
        raise UsageError(
            "--rank, --head, --secret and --out go together",
            hint="slipstream deploy prepare PLAN --rank 1 --head ADDRESS --secret FILE --out FILE",
        )
    local = Weights(screen, os.environ).localize(plan)
    if options.rank is not None:
        _write_rank(options, plan)
    models = [local.settings.model.value, *filter(None, [local.drafter])]
    lines = [f"{model} is here and checked" for model in models]
    screen.show_data(text="\n".join(lines), document=local.to_json())
    return ExitCode.DONE


def _write_rank(options: argparse.Namespace, plan: LaunchPlan) -> None:
    """Write the plan of this rank, and beside it the secret, which only this user may read."""
    secret = options.out.absolute().with_name("secret")
    ranked = make_rank_plan(
        plan, options.rank, options.head, interface=options.interface, secret_file=str(secret)
    )
    _save(options.out, ranked.to_json())
    try:
        with options.secret.open("rb") as file:
            write_atomically(secret, file.read(MOST_BYTES), mode=0o600)
    except OSError as fault:
        raise InvalidInputError(
            f"cannot copy {options.secret} to {secret}: {fault.strerror}",
            hint="kubectl describe pod; the Secret of the group has a key `secret`",
        ) from fault
    read_secret(secret)
