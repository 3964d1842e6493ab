"""`slipstream deploy`: write a plan as files for Kubernetes, check such files, prepare a pod."""

import argparse
import os
import sys
from pathlib import Path

from pydantic import ValidationError

from slipstream.atomic_files import write_atomically
from slipstream.cli.options import OptionAdder, add_host, natural_number
from slipstream.cli.planning.plan import add_plan_options, find_host, make_plan, plan_for
from slipstream.cli.planning.saved_plans import add_allow, read_plan, read_saved_plan, require_named
from slipstream.cli.screen import Screen
from slipstream.cli.weights import WeightsOnDisk
from slipstream.deployment.deployment import Deployment, DeploymentList, DeploymentOptions
from slipstream.deployment.hazards import examine
from slipstream.deployment.manifests import read_manifests, render_manifests, render_values
from slipstream.deployment.other_stacks import STACKS, translate
from slipstream.deployment.pod_group import make_rank_plan
from slipstream.deployment.rules import make_deployment
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.fleet.planning.planner import spread_options
from slipstream.fleet.record import read_fleet
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan
from slipstream.records import describe_faults
from slipstream.reporting.deployment import render_hazards
from slipstream.serving.group.link import MOST_BYTES, read_secret
from slipstream.user_folders import find_local

ACTIONS = ("kubernetes", "check", "prepare")
EXAMPLES = """\
# write the values of the Helm chart for a saved plan, for two replicas
slipstream deploy kubernetes plan.json --replicas 2 --out values.yaml
# render the manifests for a DGX Spark, and check them
slipstream deploy kubernetes Qwen/Qwen3-8B --host gb10 --raw --out manifests.yaml
slipstream deploy check manifests.yaml
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "ACTION",
        "kubernetes: write files for a plan; check: list what is unsafe in manifests; "
        "prepare: download and check the weights of a plan, as a pod does before its engine starts",
        choices=ACTIONS,
    )
    add(
        "TARGET",
        "file of a saved plan, hub name of a model, or fleet.toml; for check a file of "
        "manifests (- is stdin)",
    )
    add_plan_options(add)
    add_allow(add)
    add = add.group("kubernetes: files")
    add("--out PATH", "file to write, for fleet.toml a folder (default: stdout)", Path)
    add("--name NAME", "release name (default: from the model)")
    add("--namespace NAME", "namespace of the manifests", default="default")
    add_host(add, "machine to plan for")
    add(
        "--for STACK",
        f"stack to write for: helm, {', '.join(STACKS)} "
        "(default helm: values for slipstream's chart)",
        default="helm",
        choices=("helm", *STACKS),
        dest="stack",
    )
    add("--raw", "write the chart's manifests, rendered by helm", dest="rendered")
    add = add.group("kubernetes: pods")
    add("--image IMAGE", "REPOSITORY:TAG[@sha256:...] (default slipstream:cuda, or slipstream:cpu)")
    add("--replicas N", "number of replicas", default=1)
    add("--max-replicas N", "scale up to this many replicas with KEDA (default: no scaling)")
    add(
        "--drain SECONDS",
        "seconds that open requests get to finish when a pod is deleted (default 30)",
        natural_number,
    )
    add("--fleet NAME", "value of the label `fleet` on all metrics", default="default")
    add("--group NAME", "value of the label `group` on all metrics", default="default")
    add = add.group("prepare: one machine of a group")
    add("--rank N", "rank of this machine", natural_number)
    add("--head ADDRESS", "host name of the machine of rank 0")
    add("--interface NAME", "name of the network interface to the other machines")
    add("--secret FILE", "file of the secret that all machines share")
    add.parser.usage = "slipstream deploy kubernetes|check|prepare TARGET [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write, check or prepare."""
    if options.action == "check":
        return _check(options.target, screen)
    if options.action == "prepare":
        return _prepare(options, screen)
    if options.rendered and options.stack != "helm":
        raise UsageError(
            "--raw works with slipstream's own chart only",
            hint="slipstream deploy kubernetes TARGET --raw",
        )
    host = find_host(options.host)
    if find_local(options.target).suffix == ".toml":
        return _write_fleet(options, host, screen)
    # A saved plan is for the machines of the cluster: they compare it with themselves.
    if find_local(options.target).is_file():
        plan = read_saved_plan(options)
        require_named(find_local(options.target), [plan], options.allow, host)
    else:
        plan = make_plan(options, host)
    deployment = make_deployment(plan, _read_options(options, plan))
    text = _render(deployment, options, screen)
    if options.out is not None:
        _save(options.out, text)
    shown = text.rstrip("\n") if options.out is None else str(options.out)
    screen.show_data(text=shown, document=deployment.to_json(), as_is=True)
    return ExitCode.DONE


def _write_fleet(options: argparse.Namespace, host: Host, screen: Screen) -> ExitCode:
    """Write a release for each group of a fleet: in a cluster its machines have no names."""
    if options.out is None:
        raise UsageError(
            "a fleet needs --out: one file per group is written",
            hint="slipstream deploy kubernetes FLEET --out DIR",
        )
    fleet = read_fleet(find_local(options.target))
    deployments, written = list[Deployment](), list[Path]()
    for name, group in fleet.groups.items():
        specified = spread_options(fleet.find_options(name), group.machines, host)
        plan = plan_for(host, fleet.model.target, specified)
        labels = {"name": f"{fleet.name}-{name}", "fleet": fleet.name, "group": name}
        labelled = _read_options(options, plan).model_dump() | labels
        deployments.append(make_deployment(plan, DeploymentOptions.model_validate(labelled)))
        written.append(options.out / f"{deployments[-1].name}.yaml")
        _save(written[-1], _render(deployments[-1], options, screen))
    document = DeploymentList(deployments=tuple(deployments)).to_json()
    screen.show_data(text="\n".join(map(str, written)), document=document)
    return ExitCode.DONE


def _read_options(options: argparse.Namespace, plan: LaunchPlan) -> DeploymentOptions:
    default = "slipstream:cpu" if plan.capability is None else "slipstream:cuda"
    try:
        return DeploymentOptions(
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
    objects = read_manifests(manifests, "the chart")
    text, missing = translate(options.stack, deployment, objects)
    for line in missing:
        screen.show_progress(f"{options.stack} does not support {line}")
    return text


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
    plan = read_plan(find_local(options.target))
    ranked = (options.rank, options.head, options.secret, options.out)
    if any(part is not None for part in ranked) and any(part is None for part in ranked):
        raise UsageError(
            "--rank, --head, --secret and --out go together",
            hint="slipstream deploy prepare PLAN --rank 1 --head ADDRESS --secret FILE --out FILE",
        )
    local = WeightsOnDisk(screen, os.environ).localize(plan)
    if options.rank is not None:
        _write_rank(options, plan)
    models = [local.settings.model.value, *filter(None, [local.drafter])]
    lines = [f"{model} is downloaded and checked" for model in models]
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
