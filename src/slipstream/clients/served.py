"""`ServedModel`: what a client needs to know: address, model, context, key, trust."""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from slipstream.errors import InvalidInputError
from slipstream.measuring.client.endpoint import KEY_VARIABLE
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.tls import Certificate
from slipstream.serving.run import Run

NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The source of a client's key, a file or else a variable; the key itself is not stored.

    `required` is None where only the server knows.
    """

    required: bool | None
    file: Path | None = None
    secret: str | None = field(default=None, repr=False)

    @property
    def is_used(self) -> bool:
        """Whether the client has to send a key."""
        return bool(self.required or self.secret)

    def for_shell(self) -> str:
        """Return the word that a shell expands to the key; clients insist on some value."""
        if not self.is_used:
            return NO_KEY
        return f'"$({self.make_command()})"' if self.file else f'"${KEY_VARIABLE}"'

    def make_command(self) -> str:
        """Return a command that prints the key."""
        if self.file is None:
            return f"printenv {KEY_VARIABLE}"
        return f"cat {shlex.quote(str(self.file.absolute()))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model at an address; what is unknown about a foreign server is None."""

    url: str
    names: tuple[str, ...]
    context: int | None
    key: ClientKey
    certificate: Certificate | None = None
    run: Run | None = None

    @property
    def name(self) -> str:
        """The name that clients request, preferably without a slash."""
        return next((name for name in self.names if "/" not in name), self.names[0])

    @property
    def api_url(self) -> str:
        """The base URL to which OpenAI's clients append their paths."""
        return f"{self.url}/v1"

    @property
    def answer_tokens(self) -> int | None:
        """The longest answer to allow: a quarter of the context, the rest being the prompt's."""
        return None if self.context is None else max(1, min(32_000, self.context // 4))

    def for_clients(self) -> "ServedModel":
        """Return the same server under a name that its certificate is for."""
        if self.certificate is None:
            return self
        parts, names = urlsplit(self.url), self.certificate.read_names()
        if not names or parts.hostname in names or "*" in names[0]:
            return self
        return replace(self, url=f"https://{names[0]}:{parts.port or 443}")


def describe_run(run: Run, key: ClientKey) -> ServedModel:
    """Return what a run of ours serves; one at a Unix socket is out of every client's reach."""
    address = Address.of(run.plan)
    if address.socket is not None:
        raise InvalidInputError(
            f"{run.id} listens at the Unix socket {address.socket}, which no client can be given",
            hint="slipstream serve TARGET --port 8000, without -- --uds",
        )
    return ServedModel(
        url=address.url,
        names=run.plan.settings.list_served_names(),
        context=run.plan.context,
        key=replace(key, required=run.terms.needs_key),
        certificate=address.certificate,
        run=run,
    )
