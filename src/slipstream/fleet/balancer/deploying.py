"""The load balancer from a control machine: its file is sent, Slipstream there does the rest."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.balancer.control import (
    LOG,
    BalancerStatus,
    find_keeper,
    is_running,
    read_state,
    set_group,
    start,
    stop,
    take_keys,
)
from slipstream.fleet.balancer.haproxy import CONFIGURATION, render_balancer
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.plan import BalancerPlan, FleetPlan
from slipstream.fleet.record import Balancer, Fleet, Name
from slipstream.records import Record

FOLDER = "balancer"
_DEPLOYED = f"{FOLDER}/plan.json"
# A stop waits for requests for ten seconds.
WITHIN_SECONDS = 90.0
Action = Literal["start", "reload", "stop", "state", "open", "close", "keys"]


class BalancerRequest(Record):
    """What the load balancer's machine is asked to do, for open and close with a group."""

    fleet: Name
    action: Action
    group: Name | None = None


def carry_out(request: BalancerRequest, fleet: Path, path: str, now: datetime) -> BalancerStatus:
    """Do it on this machine, and return the state of the groups if HAProxy runs."""
    folder, action = fleet / FOLDER, request.action
    if action in ("start", "keys"):
        take_keys(fleet, folder, now)
    if action == "start" or (action == "reload" and find_keeper(folder) is not None):
        start(folder, path)
    elif action == "stop":
        stop(folder)
    elif request.group is not None and action in ("open", "close"):
        return set_group(folder, request.group, is_open=action == "open")
    elif action == "state":
        return read_state(folder)
    return read_state(folder) if is_running(folder) else BalancerStatus()


def deploy_balancer(plan: FleetPlan, far: Machines) -> None:
    """Start the load balancer as planned; one that runs takes the new plan without a pause."""
    if plan.balancer is not None:
        content = render_balancer(plan.balancer).encode()
        far.send(plan.balancer.machine, content, f"{FOLDER}/{CONFIGURATION}")
        ask_balancer(far, "start")
        far.send(plan.balancer.machine, plan.balancer.to_json().encode(), _DEPLOYED)


def read_deployed(far: Machines) -> BalancerPlan | None:
    """Read the plan with which the load balancer was started last."""
    machine = require_balancer(far.fleet).machine
    return far.read_record(machine, _DEPLOYED, BalancerPlan, hint="slipstream fleet up")


def ask_balancer(
    far: Machines, action: Action = "state", group: str | None = None
) -> BalancerStatus:
    """Have the load balancer's machine do something, and return which groups take requests."""
    machine = require_balancer(far.fleet).machine
    request = BalancerRequest(fleet=far.fleet.name, action=action, group=group)
    is_change = action in ("start", "reload", "stop", "keys")
    return far.ask(
        machine,
        request,
        BalancerStatus,
        timeout=WITHIN_SECONDS,
        # What does not answer leaves a rollout as it stands; what cannot be done is a failure.
        fault=EngineError if is_change else UnreachableError,
        hint=far.fleet.hint_ssh(machine, f"tail {far.fleet.folder}/{FOLDER}/{LOG}")
        if is_change
        else "slipstream fleet up",
    )


@contextmanager
def closed_to(far: Machines, groups: Iterable[str]) -> Iterator[None]:
    """Keep new requests from groups that are stopped meanwhile; afterwards their health decides."""
    closed: list[str] = []
    for name in groups if far.fleet.balancer is not None else ():
        with suppress(SlipstreamError):  # Nobody balances now, or not to this group.
            ask_balancer(far, "close", name)
            closed.append(name)
    try:
        yield
    finally:
        for name in closed:
            ask_balancer(far, "open", name)


def require_balancer(fleet: Fleet) -> Balancer:
    """Return the fleet's load balancer; without one there is nothing to take a group out of."""
    if fleet.balancer is None:
        raise InvalidInputError(
            "the fleet has no load balancer",
            hint="add [balancer] machine = NAME to the fleet's file",
        )
    return fleet.balancer
