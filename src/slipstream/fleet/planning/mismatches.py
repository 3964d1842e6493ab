"""What does not match between the machines of a fleet, each with what to type about it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Literal

from slipstream import __version__
from slipstream.checkpoints.pairing import Fault, refuse, warn
from slipstream.engines.vllm_tables import VERSION
from slipstream.fleet.machines.commands import VENV, escape
from slipstream.fleet.plan import Link, MachineView
from slipstream.fleet.planning.topology import GroupNetwork, order_ring
from slipstream.fleet.record import Fleet
from slipstream.hardware import name_kind

# Certificates and logs compare times of different machines.
MOST_CLOCK_SECONDS = 1.0
JUMBO_MTU = 9000
# A step of tensor parallel waits for two exchanges a layer; below this the link decides.
LEAST_GIGABITS = 10.0


def find_mismatches(
    fleet: Fleet, views: Mapping[str, MachineView], links: tuple[Link, ...]
) -> list[Fault]:
    """Compare the machines with each other and with what runs here."""
    return [
        *_find_version_faults(fleet, views),
        *_find_weight_faults(fleet, views),
        *_find_clock_faults(fleet, views),
        *(fault for link in links for fault in _find_mtu_faults(fleet, link)),
        *(fault for name in fleet.groups for fault in _find_group_faults(fleet, name, views)),
    ]


def find_network_faults(
    fleet: Fleet, group: str, network: GroupNetwork | None, links: tuple[Link, ...]
) -> Iterator[Fault]:
    members, where = fleet.groups[group].machines, f"group {group}"
    if network is None:
        what = f"no network has a measured link between every two of {', '.join(members)}"
        hint = "ip address, on each of them; then slipstream fleet doctor"
        yield refuse("fleet-group-link", f"{where}: {what}", hint)
        return
    cables = [link for link in links if link.kind == "roce" and {link.a, link.b} <= {*members}]
    if network.shape == "tcp" and cables:
        hint = "cable every machine to the next one, or all to a switch"
        if order := order_ring(members, cables):
            hint = f"machines = {json.dumps(order)} in [groups.{group}]"
        what = "RDMA links do not connect its machines in the order of their ranks"
        yield warn("fleet-ring", f"{where}: {what}", hint)
    slowest = network.slowest_gigabits
    if network.shape == "tcp" and slowest is not None and slowest < LEAST_GIGABITS:
        what = f"its slowest link carries {slowest:g} Gbit/s, and every layer of every step waits"
        hint = (
            "one machine per group, if the model fits; to measure the links: slipstream fleet probe"
        )
        yield warn("fleet-slow-link", f"{where}: {what} for it", hint)
    size = len(members)
    if size & (size - 1):
        what = f"{size} machines; tensor parallel needs a number of heads that {size} divides"
        hint = f"groups of 2, 4 or 8 machines; its heads: slipstream models {fleet.model.target}"
        yield warn("fleet-ranks", f"{where}: {what}", hint)


def _find_version_faults(fleet: Fleet, views: Mapping[str, MachineView]) -> Iterator[Fault]:
    served = {name: view for name, view in views.items() if fleet.find_group(name)}
    for name, view in views.items():
        if view.slipstream != __version__:
            what = f"{name} has slipstream {view.slipstream or 'unknown'}, and this is"
            hint = "slipstream fleet roll --install"
            if is_one_apart(view.slipstream or "", __version__):
                yield warn("fleet-slipstream", f"{what} {__version__}", hint)
            else:
                yield refuse("fleet-slipstream", f"{what} {__version__}", hint)
        if view.engine is None and name in served:
            python = fleet.machines[name].python or f"{VENV}/bin/python"
            hint = fleet.hint_ssh(name, python, "-m pip install", f"vllm=={VERSION}")
            yield refuse("fleet-engine", f"{name} has no engine", hint)
    engines = {name: view.engine for name, view in served.items()}
    yield from _compare("engine", engines, code="fleet-engine-version", verdict="warn")


def is_one_apart(left: str, right: str) -> bool:
    """Say whether two versions go together while a fleet is upgraded: at most one minor apart."""
    numbers = [[int(one) for one in re.findall(r"[0-9]+", text)[:2]] for text in (left, right)]
    ours, theirs = numbers
    return len(ours) == len(theirs) == 2 and ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= 1


def _find_group_faults(
    fleet: Fleet, group: str, views: Mapping[str, MachineView]
) -> Iterator[Fault]:
    members = {name: views[name] for name in fleet.groups[group].machines if name in views}
    hosts = {name: view.host for name, view in members.items()}
    engines = {name: view.engine for name, view in members.items()}
    torches = {name: host.software.torch for name, host in hosts.items()}
    drivers = {name: host.software.nvidia_driver for name, host in hosts.items()}
    kinds = {
        name: f"{len(host.accelerators)} x {name_kind(host) or 'unknown'}"
        for name, host in hosts.items()
    }
    where = f"group {group}: "
    yield from _compare(f"{where}engine", engines, code="fleet-rank-engine")
    yield from _compare(f"{where}torch", torches, code="fleet-rank-torch")
    yield from _compare(f"{where}NVIDIA driver", drivers, code="fleet-rank-driver", verdict="warn")
    yield from _compare(f"{where}kind and number of accelerators", kinds, code="fleet-rank-machine")


def _find_weight_faults(fleet: Fleet, views: Mapping[str, MachineView]) -> Iterator[Fault]:
    for model in filter(None, (fleet.model.target, fleet.model.drafter)):
        hashes = {name: (view.weights or {}).get(model, "")[:12] for name, view in views.items()}
        hint = f"remove the wrong copy; to compare: slipstream models {model}"
        yield from _compare(f"weights of {model}, sha256", hashes, code="fleet-weights", hint=hint)


def _find_clock_faults(fleet: Fleet, views: Mapping[str, MachineView]) -> Iterator[Fault]:
    offsets = {
        name: view.clock_offset_seconds
        for name, view in views.items()
        if view.clock_offset_seconds is not None
    }
    off = {name: offset for name, offset in offsets.items() if abs(offset) > MOST_CLOCK_SECONDS}
    if off:
        shown = ", ".join(f"{name} {offset:+.1f} s" for name, offset in off.items())
        hint = fleet.hint_ssh(next(iter(off)), "timedatectl set-ntp true")
        yield warn("fleet-clock", f"clocks differ from this machine's: {shown}", hint)


def _find_mtu_faults(fleet: Fleet, link: Link) -> Iterator[Fault]:
    ends = ((link.a, link.interface_a, link.mtu_a), (link.b, link.interface_b, link.mtu_b))
    if link.mtu_a is None or link.mtu_b is None:
        return
    largest = max(link.mtu_a, link.mtu_b, JUMBO_MTU if link.kind == "roce" else 0)
    if low := [end for end in ends if end[2] != largest]:
        shown = ", ".join(f"{name} {interface} {mtu}" for name, interface, mtu in ends)
        machine, interface, _ = low[0]
        why = "differ" if link.mtu_a != link.mtu_b else f"are below {JUMBO_MTU}"
        yield warn(
            "fleet-mtu",
            f"MTUs of a link {why}: {shown}",
            fleet.hint_ssh(machine, "sudo ip link set dev", interface, f"mtu {largest}"),
        )


def _compare(
    what: str,
    known: Mapping[str, str | None],
    *,
    code: str,
    verdict: Literal["refuse", "warn"] = "refuse",
    hint: str = "install the same on each; slipstream fleet probe --json shows them",
) -> Iterator[Fault]:
    """Name those that differ from most; what is unknown differs from nothing."""
    values = {name: escape(value, 80) for name, value in known.items() if value}
    counted = sorted(set(values.values()), key=[*values.values()].count, reverse=True)
    if len(counted) < 2:
        return
    parts = []
    for value in counted[:4]:
        names = [name for name in values if values[name] == value]
        shown = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
        parts.append(f"{value} on {shown}")
    message = f"{what} differs: {'; '.join(parts)}"
    yield Fault(code=code, verdict=verdict, message=message, hint=hint)
