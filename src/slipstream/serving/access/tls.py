"""TLS of an engine: its certificate is checked before the start, and pinned by our clients.

An engine that wants certificates of its clients (`--ssl-cert-reqs 2`) is shown its own: whoever can
read the engine's key on this machine could be the engine, so it may ask it as well.

Inside this machine a name proves nothing: what is trusted is the one certificate of the file that
the engine was given, whatever names and dates it has. An intermediate authority in the same file is
not trusted, or it would vouch for every other customer of that authority.
"""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from slipstream.errors import InvalidInputError
from slipstream.planning.plan import LaunchPlan

WARN_BEFORE = timedelta(days=14)
TLS_FLAGS = (
    "--ssl-certfile",
    "--ssl-keyfile",
    "--ssl-ca-certs",
    "--ssl-cert-reqs",
    "--ssl-ciphers",
    "--enable-ssl-refresh",
)

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# Of OpenSSL; Python has no name for it.
_NO_CHECK_TIME = 0x200000


class PinnedContext(ssl.SSLContext):
    """An SSL context that trusts only the certificates that a file held since it was created.

    The file is read again for each connection: a renewed certificate is expected at once, and
    an engine without `--enable-ssl-refresh` goes on with the one it started with.
    """

    _certificate: "TlsCertificate"
    _trusted: set[str]

    def __new__(cls, certificate: "TlsCertificate") -> Self:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        context._certificate, context._trusted = certificate, set()
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        return context

    def __init__(self, certificate: "TlsCertificate") -> None:
        super().__init__()
        self._trust(_read_leaf(certificate.file))

    def wrap_bio(self, *words: Any, **more: Any) -> ssl.SSLObject:
        self._follow()
        return super().wrap_bio(*words, **more)

    def wrap_socket(self, *words: Any, **more: Any) -> ssl.SSLSocket:
        self._follow()
        return super().wrap_socket(*words, **more)

    def _follow(self) -> None:
        try:
            self._trust(_read_leaf(self._certificate.file))
        except (InvalidInputError, ssl.SSLError):
            return  # It is being replaced; what was trusted still is.

    def _trust(self, leaf: str) -> None:
        if leaf not in self._trusted:
            if self._certificate.authority is not None:
                self._certificate.load_into(self)
            self.load_verify_locations(cadata=leaf)
            self._trusted.add(leaf)


@dataclass(frozen=True, slots=True)
class TlsCertificate:
    """The certificate and key files of an engine; `authority` signs those of its clients."""

    file: Path
    key: Path | None = None
    ciphers: str | None = None
    authority: Path | None = None

    @classmethod
    def of(cls, plan: LaunchPlan) -> Self | None:
        """Return what a plan gives its engine; None if that speaks plain HTTP."""
        rest = {flag: choice.value for flag, choice in plan.settings.rest.items()}
        asks_clients = rest.get("--ssl-cert-reqs") == ssl.CERT_REQUIRED
        if asks_clients and rest.get("--ssl-ca-certs") is None:
            raise InvalidInputError(
                "--ssl-cert-reqs 2 requires client certificates, but no authority for them is set",
                hint="name an authority with --ssl-ca-certs, or leave --ssl-cert-reqs out",
            )
        named = {flag: str(rest[flag]) for flag in TLS_FLAGS if rest.get(flag) is not None}
        if "--ssl-certfile" not in named:
            if named.keys() & {"--ssl-keyfile", "--ssl-ca-certs"}:
                raise InvalidInputError(
                    f"{', '.join(named)} without a certificate",
                    hint="-- --ssl-certfile CERTIFICATE --ssl-keyfile KEY",
                )
            return None
        key = named.get("--ssl-keyfile")
        return cls(
            file=Path(named["--ssl-certfile"]),
            key=Path(key) if key else None,
            ciphers=named.get("--ssl-ciphers"),
            authority=Path(named["--ssl-ca-certs"]) if asks_clients else None,
        )

    def check(self, now: datetime) -> tuple[str, ...]:
        """Raise if no engine could serve with these files; return warnings about them."""
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(self._read()["notAfter"]), UTC)
        if ends <= now:
            return (f"the certificate {self.file} has expired, on {ends:%Y-%m-%d %H:%M} UTC",)
        if ends - now < WARN_BEFORE:
            return (f"the certificate {self.file} expires on {ends:%Y-%m-%d %H:%M} UTC",)
        return ()

    def read_names(self) -> tuple[str, ...]:
        return tuple(text for kind, text in self._read().get("subjectAltName", ()))

    def pin(self) -> PinnedContext:
        """Return a context that reaches this engine and no other."""
        return PinnedContext(self)

    def load_into(self, context: ssl.SSLContext) -> None:
        # A password would be asked for at a terminal, by us and by the engine.
        context.load_cert_chain(self.file, self.key, password="")

    def _read(self) -> Mapping[str, Any]:
        """Do a TLS handshake with ourselves and return the certificate that the client sees."""
        _read_leaf(self.file)
        try:
            return _shake_hands(self._serve(), self.pin())
        except (OSError, ValueError) as fault:
            why = getattr(fault, "verify_message", None) or getattr(fault, "reason", None)
            raise InvalidInputError(
                f"the engine cannot serve with {self.file} and {self.key or 'the key in it'}: "
                f"{str(why or fault).replace('_', ' ').lower()}",
                hint=f"openssl x509 -noout -text -in {self.file}; the key: openssl pkey -in KEY, "
                "in PEM and without a password",
            ) from fault

    def _serve(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.load_into(context)
        if self.ciphers:
            context.set_ciphers(self.ciphers)
        if self.authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context


def _read_leaf(file: Path) -> str:
    """Return the first certificate of a file, which is the server's own."""
    try:
        found = _PEM.search(file.read_text())
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise InvalidInputError(
            f"cannot read the certificate {file}: {why}", hint=f"ls -l {file}"
        ) from fault
    if found is None:
        raise InvalidInputError(
            f"{file} has no certificate in PEM format",
            hint=f"openssl x509 -inform DER -in {file} -out CERTIFICATE",
        )
    return found[0]


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there)
    answering = server.wrap_bio(there, back, server_side=True)
    for side in (asking, answering) * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return asking.getpeercert() or {}
