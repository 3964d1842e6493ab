"""Certificates for tests: a server's own, one of an authority, and their keys."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files and as objects."""

    file: Path
    key: Path
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--ssl-certfile", str(self.file), "--ssl-keyfile", str(self.key))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make_pair(
    folder: Path,
    name: str = "llm.example.org",
    *,
    days: float = 90,
    issuer: Pair | None = None,
    is_authority: bool = False,
    password: bytes | None = None,
) -> Pair:
    """Make a certificate that ends in so many days, by its own key or by an authority's."""
    folder.mkdir(parents=True, exist_ok=True)
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=200))
        .not_valid_after(NOW + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    certificate = builder.sign(issuer.private if issuer else private, hashes.SHA256())
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        protection = serialization.BestAvailableEncryption(password)
    pair = Pair(folder / "cert.pem", folder / "key.pem", certificate, private)
    pair.file.write_bytes(pair.pem)
    pair.key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )
    )
    return pair
