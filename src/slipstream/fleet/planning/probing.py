"""A look at every machine of a fleet over SSH, all at a time; what could not be seen is a fault.

Only ways between the members of a group are measured, so the work grows with the groups and not
with all pairs of machines; requests and answers are text, which any network carries.
"""

import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from itertools import combinations, islice, product
from pathlib import Path

from pydantic import ValidationError

from slipstream import __version__
from slipstream.checkpoints.pairing import Fault
from slipstream.errors import SlipstreamError, UnreachableError
from slipstream.fleet.far_side.connections import (
    SECRET_BYTES,
    LinkFigures,
    Listening,
    MeasureLink,
    ServeLink,
)
from slipstream.fleet.far_side.this_machine import DescribeMachine
from slipstream.fleet.machines.commands import (
    Machines,
    Stream,
    ask_all,
    escape,
    name_command,
    name_request,
)
from slipstream.fleet.machines.installing import install, make_wheel
from slipstream.fleet.plan import FleetProbe, Interface, Link, MachineView
from slipstream.fleet.record import Fleet

PROBE_SECONDS = 120
Report = Callable[[str], None]


class _RefusedError(UnreachableError):
    """A machine's Slipstream does not know what it was asked."""


def probe_fleet(
    far: Machines,
    report: Report,
    *,
    installing: bool = False,
    wheels: Path | None = None,
) -> FleetProbe:
    """Look at every machine and measure the links; a machine that fails does not stop the others.

    With `installing`, machines without this version get it first.
    """
    wheel = make_wheel() if installing else None

    def look(machine: str) -> MachineView:
        offset = _read_clock(far, machine)
        if wheel is not None and _read_version(far, machine) != __version__:
            report(f"{machine}: slipstream {__version__} is installed")
            install(far, machine, wheel, wheels)
        view = _look(far, machine)
        report(f"{machine}: {view.engine or 'no engine'}, slipstream {view.slipstream}")
        first = next((str(end.ip) for _, end in list_ends(view)), None)
        address = far.fleet.machines[machine].address or view.address or first
        return view.model_copy(update={"clock_offset_seconds": offset, "address": address})

    seen = ask_all(far.fleet.machines, look)
    views = {name: one for name, one in seen.items() if isinstance(one, MachineView)}
    failed = [one for one in seen.values() if isinstance(one, SlipstreamError)]
    faults = tuple(_describe(one, code="fleet-machine") for one in failed)
    report("the links are measured")
    links, missing = measure_links(far, views)
    faults += tuple(_describe(fault, code="fleet-link") for fault in missing)
    return FleetProbe(machines=views, links=links, faults=faults)


def _look(far: Machines, machine: str) -> MachineView:
    models = tuple(name for name in (far.fleet.model.target, far.fleet.model.drafter) if name)
    request = DescribeMachine(models=models)
    try:
        return far.ask(machine, request, MachineView, timeout=PROBE_SECONDS, fault=_RefusedError)
    except _RefusedError as fault:
        version = _read_version(far, machine)
        raise UnreachableError(
            f"{machine} has slipstream {version or 'of an unknown version'}, and this is "
            f"{__version__}: {fault.message.removeprefix(f'{machine}: ')}",
            hint="slipstream fleet probe --install",
        ) from fault


def _read_version(far: Machines, machine: str) -> str | None:
    """Return the version that a machine has, None if it has none that answers."""
    command = name_command(far.fleet.machines[machine], ["--version"])
    answer = far.transport.run(machine, command, timeout=PROBE_SECONDS)
    if answer.code:
        return None
    # A login may print something first; the engine's version follows a comma.
    found = re.findall(r"^slipstream ([^\s,]+)", answer.stdout.decode(errors="replace"), re.M)
    return escape(found[-1], 40) if found else None


def _read_clock(far: Machines, machine: str) -> float | None:
    """Return how far a machine's clock is ahead of ours, None where the way there hides it."""
    far.transport.run(machine, ["true"], timeout=PROBE_SECONDS)  # Connecting takes its time.
    begun = time.time()
    answer = far.transport.run(machine, ["date", "+%s.%N"], timeout=PROBE_SECONDS)
    middle = (begun + time.time()) / 2
    try:
        offset = float(answer.stdout.split()[-1][:64]) - middle
    except (ValueError, IndexError):
        return None
    return round(offset, 3) if math.isfinite(offset) else None


def _describe(error: SlipstreamError, *, code: str) -> Fault:
    details = f" ({'; '.join(error.details)})" if error.details else ""
    return Fault(code=code, verdict="refuse", message=f"{error.message}{details}", hint=error.hint)


MOST_WAYS = 6
LISTEN_SECONDS = 30
MOST_LOGIN_LINES = 100
_VIRTUAL = ("docker", "br-", "virbr", "cni", "flannel", "kube", "tun", "tap")


def list_pairs(fleet: Fleet) -> list[tuple[str, str]]:
    """List the pairs of machines that exchange results in every layer of every step."""
    return [pair for group in fleet.groups.values() for pair in combinations(group.machines, 2)]


def list_ways(a: str, view_a: MachineView, b: str, view_b: MachineView) -> list[Link]:
    """List pairs of addresses in the same network, RDMA first; failing that, the first of each.

    They are links whose figures are not known yet.
    """
    ends = list(product(list_ends(view_a), list_ends(view_b)))
    # A bridge that every machine has for itself carries the same address everywhere.
    near = [
        (one, other)
        for one, other in ends
        if one[1].network == other[1].network and one[1].ip != other[1].ip
    ]
    ways = [
        Link(
            a=a,
            b=b,
            interface_a=one.name,
            interface_b=other.name,
            address_a=str(here.ip),
            address_b=str(there.ip),
            kind="roce" if one.rdma_active and other.rdma_active else "tcp",
            gigabits=None,
            round_trip_ms=None,
            mtu_a=one.mtu,
            mtu_b=other.mtu,
        )
        for (one, here), (other, there) in near or ends[:1]
    ]
    return sorted(ways, key=lambda way: way.kind != "roce")[:MOST_WAYS]


def measure_links(
    far: Machines, views: Mapping[str, MachineView]
) -> tuple[tuple[Link, ...], tuple[SlipstreamError, ...]]:
    """Measure every way between pairs that were seen, no machine twice at a time."""
    pairs = [pair for pair in list_pairs(far.fleet) if pair[0] in views and pair[1] in views]
    links, faults = list[Link](), list[SlipstreamError]()
    for chosen in _group_disjoint(pairs):
        ways = {f"{a} and {b}": list_ways(a, views[a], b, views[b]) for a, b in chosen}

        def measure(name: str, ways: dict[str, list[Link]] = ways) -> list[Link]:
            return _measure_pair(far, name, ways[name])

        for outcome in ask_all(ways, measure).values():
            if isinstance(outcome, SlipstreamError):
                faults.append(outcome)
            else:
                links += outcome
    return tuple(links), tuple(faults)


def list_ends(view: MachineView) -> Iterator[tuple[Interface, IPv4Interface | IPv6Interface]]:
    """Yield the addresses of a machine that others may reach, in the kernel's order."""
    for interface in view.interfaces:
        if interface.up is not False and not interface.name.startswith(_VIRTUAL):
            for address in interface.addresses:
                yield interface, ip_interface(address)


def _group_disjoint(pairs: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Put pairs into rounds in which no machine is twice: they would share their links."""
    left = list(pairs)
    while left:
        busy, chosen = set[str](), []
        for pair in left:
            if busy.isdisjoint(pair):
                busy.update(pair)
                chosen.append(pair)
        left = [pair for pair in left if pair not in chosen]
        yield chosen


def _measure_pair(far: Machines, name: str, ways: list[Link]) -> list[Link]:
    """Measure all ways between two machines; one that carries nothing is no link."""
    links, faults = list[Link](), list[SlipstreamError]()
    for way in ways:
        try:
            links.append(_measure_way(far, way))
        except SlipstreamError as fault:
            faults.append(fault)
    if not ways:
        faults = [UnreachableError(f"{name} have no network in common", hint="ip address, on both")]
    if not links:
        raise faults[0]
    return links


def _measure_way(far: Machines, way: Link) -> Link:
    secret = secrets.token_hex(SECRET_BYTES)
    serving = ServeLink(address=way.address_b, secret=secret, seconds=LISTEN_SECONDS)
    content = serving.model_dump_json().encode()
    stream = far.start(way.b, name_request(serving), stdin=content)
    try:
        port = _read_port(way.b, stream)
        request = MeasureLink(source=way.address_a, address=way.address_b, port=port, secret=secret)
        figures = far.ask(way.a, request, LinkFigures)
    finally:
        stream.close()
    gigabits, round_trip = round(figures.gigabits, 2), round(figures.round_trip_ms, 3)
    return way.model_copy(update={"gigabits": gigabits, "round_trip_ms": round_trip})


def _read_port(machine: str, stream: Stream) -> int:
    """Read where the other end listens; what a login prints comes before it."""
    for line in islice(stream.lines(), MOST_LOGIN_LINES):
        with suppress(ValidationError):
            return Listening.model_validate_json(line).port
    raise UnreachableError(
        f"{machine}: the end of a link did not start to listen", hint="slipstream fleet probe"
    )
