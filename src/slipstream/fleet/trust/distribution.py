"""Certificates and keys as files on every machine: sent over SSH, followed there without a restart.

A machine's key is made here, sent, and kept nowhere else. Certificates are written over the old
ones: vLLM watches the files and not their names. Keys are replaced in one step: the gate watches
names.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from slipstream.errors import InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.balancer.deploying import ask_balancer
from slipstream.fleet.far_side.this_machine import DescribeMachine
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.transport import ask_all
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
    far: Machines, authority: Authority, *, now: datetime, names: Iterable[str] = ()
) -> dict[str, Delivery | SlipstreamError]:
    """Send every machine what it needs to trust the others.

    `names` are more that clients call the load balancer by.
    """

    def deliver_to(machine: str) -> Delivery:
        own = _list_names(far.fleet, machine)
        certificate = _renew(far, authority, machine, MACHINE, own, now)
        front = None
        if _is_balancer(far.fleet, machine):
            wanted = [*names, *own, *_list_claimed_names(far, authority, machine)]
            front = _renew(far, authority, machine, FRONT, wanted, now)
            if certificate or front:
                ask_balancer(far, "reload")
        keys = send_keys(far, machine)
        return Delivery(machine=machine, certificate=certificate, front=front, keys=keys)

    return ask_all(far.fleet.machines, deliver_to)


def deliver_keys(far: Machines) -> dict[str, Delivery | SlipstreamError]:
    """Send every machine the keys of the fleet's file; a revoked one opens nothing from then on."""
    return ask_all(
        far.fleet.machines,
        lambda machine: Delivery(machine=machine, keys=send_keys(far, machine)),
    )


def send_keys(far: Machines, machine: str) -> int | None:
    """Send the keys to a machine, and have its load balancer take them; None without any."""
    if far.fleet.keys is None:
        return None
    file = far.fleet.keys.file
    if not (keys := read_keys(file)):
        raise InvalidInputError(
            f"there are no keys in {file}",
            hint=f"SLIPSTREAM_KEYS={file} slipstream keys new --name NAME",
        )
    content = "".join(f"{key.model_dump_json(exclude_none=True)}\n" for key in keys)
    far.send(machine, content.encode(), KEYS_FILE)
    if _is_balancer(far.fleet, machine):
        ask_balancer(far, "keys")
    return len(keys)


def require_certificates(far: Machines, groups: Iterable[str]) -> None:
    """Refuse to start groups behind a load balancer without what they know each other by."""
    if far.fleet.balancer is None:
        return
    heads = [far.fleet.groups[name].machines[0] for name in groups]

    def has_one(machine: str) -> bool:
        file = FRONT if _is_balancer(far.fleet, machine) else MACHINE
        return bool(far.read(machine, f"{TLS_FOLDER}/{file}"))

    answers = ask_all({*heads, far.fleet.balancer.machine}, has_one)
    if lacking := sorted(name for name, answer in answers.items() if answer is not True):
        raise InvalidInputError(
            f"{', '.join(lacking)}: no certificate of the fleet's authority",
            hint="slipstream fleet init",
        )


def _is_balancer(fleet: Fleet, machine: str) -> bool:
    return fleet.balancer is not None and fleet.balancer.machine == machine


def _renew(
    far: Machines,
    authority: Authority,
    machine: str,
    file: str,
    names: list[str],
    now: datetime,
) -> str | None:
    """Send a machine a certificate if it needs one, and return why it did."""
    found = far.read(machine, f"{TLS_FOLDER}/{file}") or b""
    reason = authority.find_reason_to_renew(found, names, now)
    if reason is None:
        return None
    issued = authority.issue(names, now)
    files = {f"{file}.key": issued.key, file: issued.certificate, AUTHORITY: authority.pem}
    for name, content in files.items():
        far.send(machine, content, f"{TLS_FOLDER}/{name}.next")
    place = f"{far.fleet.folder}/{TLS_FOLDER}"
    command = ["sh", "-c", _OVERWRITE, "sh", *(f"{place}/{name}" for name in files)]
    answer = far.transport.run(machine, command, timeout=_SECONDS)
    if answer.code:
        raise UnreachableError(
            f"{machine}: cannot write {place}: {answer.complaint}",
            hint=far.fleet.hint_ssh(machine, "ls -l", place),
        )
    return reason


def _list_names(fleet: Fleet, machine: str) -> list[str]:
    """Return what a machine is called: HAProxy asks a gate for its name in the fleet's file."""
    host = fleet.find_login(machine)[0].rpartition("@")[2]
    address = fleet.machines[machine].address
    return list(dict.fromkeys([machine, host, *([address] if address else [])]))


def _list_claimed_names(far: Machines, authority: Authority, machine: str) -> list[str]:
    """Return the addresses and earlier names that the load balancer's machine shows.

    Clients may call it by any of them. What a machine says of itself must not make it another one.
    """
    view = far.ask(machine, DescribeMachine(), MachineView)
    listed = [one.partition("/")[0] for end in view.interfaces for one in end.addresses]
    own = [view.address] if view.address else []
    # An address of a link alone is known to its neighbours only.
    usable = [one for one in (*own, *listed) if not one.startswith("fe80:")]
    shown = far.read(machine, f"{TLS_FOLDER}/{FRONT}") or b""
    claimed = [*usable, "localhost", "127.0.0.1", *authority.list_names(shown)]
    machines = [one for one in far.fleet.machines if one != machine]
    others = {name for one in machines for name in _list_names(far.fleet, one)}
    return [name for name in dict.fromkeys(claimed) if name not in others]
