"""A fleet's own certificate authority, by `cryptography`: made once, and kept by whoever made it.

Its key stays beside fleet.toml and is never sent anywhere. A machine's certificate is for its name
and its addresses, and serves both ways: HAProxy shows it to gates, gates show it to HAProxy.

Certificates and keys are sent over SSH and followed without a restart. A machine's key is made
here, sent, and kept nowhere else. Certificates are written over the old ones: vLLM watches the
files and not their names. Keys are replaced in one step: the gate watches names.
"""

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.balancer.deploying import ask_balancer
from slipstream.fleet.far_side.this_machine import DescribeMachine
from slipstream.fleet.machines.commands import Machines, ask_all
from slipstream.fleet.plan import MachineView
from slipstream.fleet.record import Fleet
from slipstream.fleet.running.starting import KEYS_NAME, render_keys
from slipstream.fleet.running.status import RENEW_BEFORE, FleetStatus
from slipstream.records import Record

AUTHORITY_DAYS = 3650
MACHINE_DAYS = 365
# Clocks differ; a certificate that is not valid yet helps nobody.
_EARLIER = timedelta(hours=1)
_CERTIFICATE, _KEY = "authority.pem", "authority.key"
_OTHER_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class Issued:
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def ends(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def issue(self, names: Iterable[str], now: datetime) -> Issued:
        """Make a key, and certify it for names and addresses; the first is the common name."""
        if self.ends <= now:
            raise InvalidInputError(
                f"the fleet's certificate authority expired on {self.ends:%Y-%m-%d}",
                hint="move its folder away (clients need the new one), then slipstream fleet init",
            )
        named = list(dict.fromkeys(names))
        key = ec.generate_private_key(ec.SECP256R1())
        ends = min(now + timedelta(days=MACHINE_DAYS), self.ends)
        builder = (
            _begin(named[0], key, self.certificate.subject, now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(map(_read_name, named)), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
        )
        certificate = builder.sign(self.key, hashes.SHA256())
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), _write_key(key))

    def list_names(self, pem: bytes) -> list[str]:
        try:
            found = x509.load_pem_x509_certificate(pem)
            found.verify_directly_issued_by(self.certificate)
            listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return []
        return [str(one.value) for one in listed]

    def find_reason_to_renew(self, pem: bytes, names: Iterable[str], now: datetime) -> str | None:
        """Say why a machine needs another certificate, None if it does not."""
        if not (listed := self.list_names(pem)):
            return "it has no certificate of this authority"
        if missing := sorted({str(_read_name(name).value) for name in names} - {*listed}):
            return f"its certificate is not for {', '.join(missing)}"
        ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        # None lasts longer than the authority.
        due = ends <= now or (ends - now < RENEW_BEFORE and ends < self.ends)
        return f"its certificate expires on {ends:%Y-%m-%d}" if due else None


def find_authority(fleet_file: Path, name: str) -> Path:
    return fleet_file.absolute().parent / f"{name}-authority"


def make_authority(folder: Path, fleet: str, now: datetime) -> Authority:
    """Make a fleet's authority in one step, readable by its maker alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"Slipstream fleet {fleet}"
    uses = dict.fromkeys(_OTHER_USES, False) | {"key_cert_sign": True, "crl_sign": True}
    certificate = (
        _begin(name, key, None, now, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(certificate, key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as scratch:
        new = Path(scratch) / folder.name
        new.mkdir(mode=0o700)
        write_atomically(new / _KEY, _write_key(key), mode=0o600)
        write_atomically(new / _CERTIFICATE, authority.pem, mode=0o600)
        # One that has files is never replaced.
        new.rename(folder)
    return authority


def read_authority(folder: Path) -> Authority | None:
    try:
        pem, key = (folder / _CERTIFICATE).read_bytes(), (folder / _KEY).read_bytes()
    except FileNotFoundError as fault:
        if not folder.is_dir() or not any(folder.iterdir()):
            return None
        raise _not_an_authority(folder) from fault
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read {fault.filename}: {fault.strerror}", hint=f"ls -l {folder}"
        ) from fault
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        private = serialization.load_pem_private_key(key, password=None)
        fits = certificate.public_key() == private.public_key()
    except (ValueError, TypeError) as fault:
        raise _not_an_authority(folder) from fault
    if not fits or not isinstance(private, ec.EllipticCurvePrivateKey):
        raise _not_an_authority(folder)
    return Authority(certificate, private)


def _not_an_authority(folder: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{folder} has no certificate authority of slipstream",
        hint=f"move {folder} away, and every machine gets a new certificate: slipstream fleet init",
    )


def _begin(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    # At most 64 characters; what counts is the list of names.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(ends)
    )


def _write_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


MACHINE, BALANCER, AUTHORITY = "machine.pem", "balancer.pem", "ca.pem"
TLS_FOLDER = "tls"
_SECONDS = 30.0
_OVERWRITE = 'set -e; umask 077; for f; do cat "$f.next" > "$f"; rm "$f.next"; done'


class Delivery(Record):
    """What a machine has now, and why it got something new; None is nothing."""

    machine: str
    certificate: str | None = None
    balancer: str | None = None
    keys: int | None = None


class DeliveryList(Record):
    schema_version: Literal[1] = 1
    deliveries: tuple[Delivery, ...]


def deliver(
    far: Machines, authority: Authority, *, now: datetime, names: Iterable[str] = ()
) -> dict[str, Delivery | SlipstreamError]:
    """Send every machine what it needs to trust the others.

    `names` are more that clients call the load balancer by.
    """

    def deliver_to(machine: str) -> Delivery:
        delivery = _certify(far, authority, machine, now, names)
        return delivery.model_copy(update={"keys": send_keys(far, machine)})

    return ask_all(far.fleet.machines, deliver_to)


def renew_certificates(far: Machines, folder: Path, now: datetime) -> None:
    """Renew what is due, if the authority is here; without it the status says what ends."""
    authority = read_authority(folder) if far.fleet.balancer is not None else None
    if authority is None:
        return
    answers = ask_all(
        far.fleet.machines, lambda machine: _certify(far, authority, machine, now, ())
    )
    for answer in answers.values():
        if isinstance(answer, SlipstreamError):
            raise answer


def add_certificates(far: Machines, status: FleetStatus) -> FleetStatus:
    """Return the status with the time at which the first certificate of each machine ends."""
    if far.fleet.balancer is None:
        return status

    def find_end(machine: str) -> datetime | None:
        files = [MACHINE, *([BALANCER] if _is_balancer(far.fleet, machine) else [])]
        found = [far.read(machine, f"{TLS_FOLDER}/{file}") for file in files]
        with suppress(ValueError):
            loaded = [x509.load_pem_x509_certificate(pem) for pem in found if pem]
            return min((one.not_valid_after_utc for one in loaded), default=None)
        return None

    reachable = [one.machine for one in status.machines if one.fault is None]
    ends = ask_all(reachable, find_end)
    machines = (
        one.model_copy(update={"certificate_ends": end})
        if isinstance(end := ends.get(one.machine), datetime)
        else one
        for one in status.machines
    )
    return status.model_copy(update={"machines": tuple(machines)})


def _certify(
    far: Machines, authority: Authority, machine: str, now: datetime, names: Iterable[str]
) -> Delivery:
    own = _list_names(far.fleet, machine)
    certificate = _renew(far, authority, machine, MACHINE, own, now)
    renewed = None
    if _is_balancer(far.fleet, machine):
        wanted = [*names, *own, *_list_claimed_names(far, authority, machine)]
        renewed = _renew(far, authority, machine, BALANCER, wanted, now)
        if certificate or renewed:
            ask_balancer(far, "reload")
    return Delivery(machine=machine, certificate=certificate, balancer=renewed)


def deliver_keys(far: Machines) -> dict[str, Delivery | SlipstreamError]:
    """Send every machine the keys of the fleet's file; a revoked one opens nothing from then on."""
    return ask_all(
        far.fleet.machines, lambda name: Delivery(machine=name, keys=send_keys(far, name))
    )


def send_keys(far: Machines, machine: str) -> int | None:
    """Send the keys to a machine, and have its load balancer take them; None without any."""
    if far.fleet.keys is None:
        return None
    content = render_keys(far.fleet.keys.file)
    far.send(machine, content, KEYS_NAME)
    if _is_balancer(far.fleet, machine):
        ask_balancer(far, "keys")
    return content.count(b"\n")


def require_certificates(far: Machines, groups: Iterable[str]) -> None:
    """Refuse to start groups behind a load balancer without what they know each other by."""
    if far.fleet.balancer is None:
        return
    heads = [far.fleet.groups[name].machines[0] for name in groups]

    def has_one(machine: str) -> bool:
        file = BALANCER if _is_balancer(far.fleet, machine) else MACHINE
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
    far: Machines, authority: Authority, machine: str, file: str, names: list[str], now: datetime
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
    shown = far.read(machine, f"{TLS_FOLDER}/{BALANCER}") or b""
    claimed = [*usable, "localhost", "127.0.0.1", *authority.list_names(shown)]
    machines = [one for one in far.fleet.machines if one != machine]
    others = {name for one in machines for name in _list_names(far.fleet, one)}
    return [name for name in dict.fromkeys(claimed) if name not in others]
