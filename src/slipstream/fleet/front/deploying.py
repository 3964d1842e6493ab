"""The front from a desk: its files sent to the router's machine, and Slipstream there asked."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.far_commands import call, explain, read_answer
from slipstream.fleet.front.control import FrontState
from slipstream.fleet.front.haproxy import render_front
from slipstream.fleet.front.service import CONFIGURATION, SUPERVISED, render_supervision
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet, Router
from slipstream.fleet.transport import Transport
from slipstream.fleet.trust.distribution import send_keys

INSTALL_SECONDS = 600.0
START_SECONDS = 60.0
STOP_SECONDS = 90.0


def deploy_front(plan: FleetPlan, transport: Transport) -> None:
    """Start the front as planned; one that runs goes over to the new plan without a pause."""
    if plan.router is None:
        return
    fleet, machine = plan.fleet, plan.router.machine
    files = {
        CONFIGURATION: render_front(plan.router),
        SUPERVISED: render_supervision(plan.router),
    }
    for name, content in files.items():
        transport.send(machine, content.encode(), f"{fleet.folder}/front/{name}")
    _do(fleet, transport, "install", timeout=INSTALL_SECONDS)
    send_keys(fleet, transport, machine)
    _do(fleet, transport, "start", timeout=START_SECONDS)


def stop_front(fleet: Fleet, transport: Transport) -> None:
    """End the front; requests under way have half a minute."""
    if fleet.router is not None:
        _do(fleet, transport, "stop", timeout=STOP_SECONDS)


def read_front(fleet: Fleet, transport: Transport) -> FrontState:
    """Ask the front which groups take requests."""
    return _ask(fleet, transport, "state")


def open_to(fleet: Fleet, transport: Transport, group: str) -> FrontState:
    """Let the front send requests to a group."""
    return _ask(fleet, transport, "open", group)


def close_to(fleet: Fleet, transport: Transport, group: str) -> FrontState:
    """Have the front send no new requests to a group."""
    return _ask(fleet, transport, "close", group)


@contextmanager
def closed_to(fleet: Fleet, transport: Transport, groups: Iterable[str]) -> Iterator[None]:
    """Keep new requests from groups that are stopped meanwhile; afterwards their health decides."""
    names = list(groups) if _has_front(fleet, transport) else []
    for name in names:
        close_to(fleet, transport, name)
    try:
        yield
    finally:
        for name in names:
            open_to(fleet, transport, name)


def _has_front(fleet: Fleet, transport: Transport) -> bool:
    if fleet.router is None:
        return False
    try:
        read_front(fleet, transport)
    except SlipstreamError:
        return False
    return True


def require_router(fleet: Fleet) -> Router:
    """Return the fleet's router; without one there is nothing to take a group out of."""
    if fleet.router is None:
        raise InvalidInputError(
            "the fleet has no router", hint="add [router] machine = NAME to the fleet's file"
        )
    return fleet.router


def _ask(fleet: Fleet, transport: Transport, *words: str) -> FrontState:
    machine = require_router(fleet).machine
    command = ["fleet", "front", fleet.name, *words, "--json"]
    answer = call(fleet, transport, machine, command, timeout=START_SECONDS)
    if answer.code:
        raise UnreachableError(
            f"{machine}: the front does not answer: {explain(answer)}",
            hint="slipstream fleet up",
        )
    return read_answer(machine, answer, FrontState)


def _do(fleet: Fleet, transport: Transport, action: str, *, timeout: float) -> None:
    machine = require_router(fleet).machine
    words = ["fleet", "front", fleet.name, action]
    answer = call(fleet, transport, machine, words, timeout=timeout)
    if answer.code:
        raise EngineError(
            f"{machine}: cannot {action} the front: {explain(answer)}",
            hint=f"ssh {fleet.name_ssh(machine)} slipstream fleet front {fleet.name} {action}",
        )
