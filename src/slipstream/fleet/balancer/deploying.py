"""The load balancer from a control machine: its file is sent, Slipstream there does the rest."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError
from slipstream.fleet.balancer.control import (
    BalancerStatus,
    is_running,
    read_state,
    set_group,
    take_keys,
)
from slipstream.fleet.balancer.haproxy import CONFIGURATION, render_balancer
from slipstream.fleet.balancer.keeper import find_keeper, start, stop
from slipstream.fleet.machines.commands import ask
from slipstream.fleet.machines.transport import Transport
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Balancer, Fleet, Name
from slipstream.records import Record

FOLDER = "balancer"
_OLD_FOLDER = "front"
START_SECONDS = 60.0
STOP_SECONDS = 90.0
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
    if action == "start" and is_running(fleet / _OLD_FOLDER):
        raise EngineError(
            "the load balancer of an earlier version runs",
            hint=f"kill $(cat {fleet / _OLD_FOLDER}/supervisord.pid)",
        )
    if action == "start" or (action == "reload" and find_keeper(folder) is not None):
        start(folder, path)
    elif action == "stop":
        stop(folder)
    elif request.group is not None and action in ("open", "close"):
        return set_group(folder, request.group, is_open=action == "open")
    elif action == "state":
        return read_state(folder)
    return read_state(folder) if is_running(folder) else BalancerStatus()


def deploy_balancer(plan: FleetPlan, transport: Transport) -> None:
    """Start the load balancer as planned; one that runs takes the new plan without a pause."""
    if plan.balancer is not None:
        content = render_balancer(plan.balancer).encode()
        place = f"{plan.fleet.folder}/{FOLDER}/{CONFIGURATION}"
        transport.send(plan.balancer.machine, content, place)
        tell_balancer(plan.fleet, transport, "start", timeout=START_SECONDS)


def stop_balancer(fleet: Fleet, transport: Transport) -> None:
    """End the load balancer; requests under way have half a minute."""
    if fleet.balancer is not None:
        tell_balancer(fleet, transport, "stop", timeout=STOP_SECONDS)


def tell_balancer(
    fleet: Fleet, transport: Transport, action: Action, *, timeout: float = START_SECONDS
) -> None:
    """Have the load balancer's machine do something that may fail there."""
    machine = require_balancer(fleet).machine
    request = BalancerRequest(fleet=fleet.name, action=action)
    try:
        ask(fleet, transport, machine, request, BalancerStatus, timeout=timeout, fault=EngineError)
    except EngineError as fault:
        raise EngineError(
            f"{machine}: cannot {action} the load balancer: {fault.message}",
            hint=fleet.hint_ssh(machine, f"tail {fleet.folder}/{FOLDER}/haproxy.log"),
        ) from fault


def read_balancer(
    fleet: Fleet, transport: Transport, action: Action = "state", group: str | None = None
) -> BalancerStatus:
    """Ask the load balancer which groups take requests, after one was opened or closed to them."""
    machine = require_balancer(fleet).machine
    request = BalancerRequest(fleet=fleet.name, action=action, group=group)
    return ask(
        *(fleet, transport, machine, request, BalancerStatus),
        timeout=START_SECONDS,
        hint="slipstream fleet up",
    )


@contextmanager
def closed_to(fleet: Fleet, transport: Transport, groups: Iterable[str]) -> Iterator[None]:
    """Keep new requests from groups that are stopped meanwhile; afterwards their health decides."""
    names = list(groups) if _is_there(fleet, transport) else []
    for name in names:
        read_balancer(fleet, transport, "close", name)
    try:
        yield
    finally:
        for name in names:
            read_balancer(fleet, transport, "open", name)


def _is_there(fleet: Fleet, transport: Transport) -> bool:
    if fleet.balancer is None:
        return False
    try:
        return bool(read_balancer(fleet, transport))
    except SlipstreamError:
        return False


def require_balancer(fleet: Fleet) -> Balancer:
    """Return the fleet's load balancer; without one there is nothing to take a group out of."""
    if fleet.balancer is None:
        raise InvalidInputError(
            "the fleet has no load balancer",
            hint="add [balancer] machine = NAME to the fleet's file",
        )
    return fleet.balancer
