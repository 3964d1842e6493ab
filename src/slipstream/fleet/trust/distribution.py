"""Certificates and keys as files on every machine: sent over SSH, followed there without a restart.

A machine's key is made here, sent, and kept nowhere else. Certificates are written over the old
ones: vLLM watches the files and not their names. Keys are replaced in one step: the gate watches
names.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from slipstream.errors import InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.balancer.deploying import tell_balancer
from slipstream.fleet.far_side.this_machine import DescribeMachine
from slipstream.fleet.machines.commands import ask, read_file
from slipstream.fleet.machines.transport import Transport, ask_all
from slipstream.fleet.plan import MachineView
from slipstream.fleet.record import Fleet
from slipstream.fleet.trust.authority import Authority
from slipstream.records import Record
from slipstream.serving.access.keys import read_keys

MACHINE, FRONT, AUTHORITY = "machine.pem", "front.pem", "ca.pem"
TLS_FOLDER, KEYS_FILE = "tls", "keys.json"
_SECONDS = 30.0
_OVERWRITE = 'set -e; umask 077; for f; do cat "$f.next" > "$f"; rm "$f.next"; done'


class Delivery(Record):
    """What a machine has now, and why it got something new; None is nothing."""

    machine: str
    certificate: str | None = None
    front: str | None = None
    keys: int | None = None


class DeliveryList(Record):
    """What every machine was brought."""

    schema_version: Literal[1] = 1
    deliveries: tuple[Delivery, ...]


def deliver(
    fleet: Fleet,
    transport: Transport,
    authority: Authority,
    *,
    now: datetime,
    names: Iterable[str] = (),
) -> dict[str, Delivery | SlipstreamError]:
    """Send every machine what it needs to trust the others.

    `names` are more that clients call the load balancer by.
    """

    def deliver_to(machine: str) -> Delivery:
        own = _list_names(fleet, machine)
        certificate = _renew(fleet, transport, authority, machine, MACHINE, own, now)
        front = None
        if fleet.balancer is not None and fleet.balancer.machine == machine:
            claimed = _list_claimed_names(fleet, transport, authority, machine)
            wanted = [*names, *own, *claimed]
            front = _renew(fleet, transport, authority, machine, FRONT, wanted, now)
            if certificate or front:
                tell_balancer(fleet, transport, "reload")
        keys = send_keys(fleet, transport, machine)
        return Delivery(machine=machine, certificate=certificate, front=front, keys=keys)

    return ask_all(fleet.machines, deliver_to)


def deliver_keys(fleet: Fleet, transport: Transport) -> dict[str, Delivery | SlipstreamError]:
    """Send every machine the keys of the fleet's file; a revoked one opens nothing from then on."""
    return ask_all(
        fleet.machines,
        lambda machine: Delivery(machine=machine, keys=send_keys(fleet, transport, machine)),
    )


def send_keys(fleet: Fleet, transport: Transport, machine: str) -> int | None:
    """Send the keys to a machine, and have its load balancer take them; None without any."""
    if fleet.keys is None:
        return None
    keys = read_keys(fleet.keys.file)
    if not keys:
        raise InvalidInputError(
            f"there are no keys in {fleet.keys.file}",
            hint=f"SLIPSTREAM_KEYS={fleet.keys.file} slipstream keys new --name NAME",
        )
    content = "".join(f"{key.model_dump_json(exclude_none=True)}\n" for key in keys)
    transport.send(machine, content.encode(), f"{fleet.folder}/{KEYS_FILE}")
    if fleet.balancer is not None and fleet.balancer.machine == machine:
        tell_balancer(fleet, transport, "keys")
    return len(keys)


def require_certificates(fleet: Fleet, transport: Transport, groups: Iterable[str]) -> None:
    """Refuse to start groups behind a load balancer without what they know each other by."""
    if fleet.balancer is None:
        return
    balancer = fleet.balancer.machine
    heads = [fleet.groups[name].machines[0] for name in groups]
    place = f"{fleet.folder}/{TLS_FOLDER}"

    def has_one(machine: str) -> bool:
        file = FRONT if machine == balancer else MACHINE
        return not transport.run(machine, ["test", "-s", f"{place}/{file}"], timeout=_SECONDS).code

    answers = ask_all({*heads, balancer}, has_one)
    if lacking := sorted(name for name, answer in answers.items() if answer is not True):
        raise InvalidInputError(
            f"{', '.join(lacking)}: no certificate of the fleet's authority",
            hint="slipstream fleet init",
        )


def _renew(
    fleet: Fleet,
    transport: Transport,
    authority: Authority,
    machine: str,
    file: str,
    names: list[str],
    now: datetime,
) -> str | None:
    """Send a machine a certificate if it needs one, and return why it did."""
    place = f"{fleet.folder}/{TLS_FOLDER}"
    found = read_file(transport, machine, f"{place}/{file}") or b""
    reason = authority.find_reason_to_renew(found, names, now)
    if reason is None:
        return None
    issued = authority.issue(names, now)
    files = {f"{file}.key": issued.key, file: issued.certificate, AUTHORITY: authority.pem}
    for name, content in files.items():
        transport.send(machine, content, f"{place}/{name}.next")
    command = ["sh", "-c", _OVERWRITE, "sh", *(f"{place}/{name}" for name in files)]
    answer = transport.run(machine, command, timeout=_SECONDS)
    if answer.code:
        raise UnreachableError(
            f"{machine}: cannot write {place}: {answer.complaint}",
            hint=fleet.hint_ssh(machine, "ls -l", place),
        )
    return reason


def _list_names(fleet: Fleet, machine: str) -> list[str]:
    """Return what a machine is called: HAProxy asks a gate for its name in the fleet's file."""
    host = fleet.find_login(machine)[0].rpartition("@")[2]
    address = fleet.machines[machine].address
    return list(dict.fromkeys([machine, host, *([address] if address else [])]))


def _list_claimed_names(
    fleet: Fleet, transport: Transport, authority: Authority, machine: str
) -> list[str]:
    """Return the addresses and earlier names that the load balancer's machine shows.

    Clients may call it by any of them. What a machine says of itself must not make it another one.
    """
    view = ask(fleet, transport, machine, DescribeMachine(), MachineView)
    listed = [one.partition("/")[0] for end in view.interfaces for one in end.addresses]
    own = [view.address] if view.address else []
    # An address of a link alone is known to its neighbours only.
    usable = [one for one in (*own, *listed) if not one.startswith("fe80:")]
    shown = read_file(transport, machine, f"{fleet.folder}/{TLS_FOLDER}/{FRONT}") or b""
    claimed = [*usable, "localhost", "127.0.0.1", *authority.list_names(shown)]
    others = {name for one in fleet.machines if one != machine for name in _list_names(fleet, one)}
    return [name for name in dict.fromkeys(claimed) if name not in others]
