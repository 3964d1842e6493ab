"""A fleet's own certificate authority, by `cryptography`: made once, and kept by whoever made it.

Its key stays beside fleet.toml and is never sent anywhere. A machine's certificate is for its name
and its addresses, and serves both ways: HAProxy shows it to gates, gates show it to HAProxy.
"""

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slipstream.errors import InvalidInputError

AUTHORITY_DAYS = 3650
MACHINE_DAYS = 365
RENEW_BEFORE = timedelta(days=60)
# Clocks differ; a certificate that is not valid yet helps nobody.
_EARLIER = timedelta(hours=1)
_CERTIFICATE, _KEY = "authority.pem", "authority.key"


@dataclass(frozen=True, slots=True)
class Issued:
    """A machine's certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate that everybody in the fleet trusts."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, names: Iterable[str], now: datetime) -> Issued:
        """Make a key, and certify it for names and addresses; the first is the common name."""
        named = list(dict.fromkeys(names))
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _begin(named[0], key, self.certificate.subject, now, MACHINE_DAYS)
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
        """Return the names and addresses that one of our certificates is for."""
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
        return f"its certificate ends on {ends:%Y-%m-%d}" if ends - now < RENEW_BEFORE else None


def make_authority(folder: Path, fleet: str, now: datetime) -> Authority:
    """Make a fleet's authority, readable by its maker alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"Slipstream fleet {fleet}"
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _begin(name, key, None, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(certificate, key)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, content in ((_KEY, _write_key(key)), (_CERTIFICATE, authority.pem)):
        with os.fdopen(
            os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as out:
            out.write(content)
    return authority


def read_authority(folder: Path) -> Authority | None:
    """Read the authority that was made here, None if there is none."""
    try:
        pem, key = (folder / _CERTIFICATE).read_bytes(), (folder / _KEY).read_bytes()
    except FileNotFoundError:
        return None
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
        f"{folder} has no authority of this program",
        hint=f"move {folder} away, and every machine gets a new certificate: slipstream fleet init",
    )


def _begin(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None,
    now: datetime,
    days: int,
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
        .not_valid_after(now + timedelta(days=days))
    )


def _write_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _read_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
