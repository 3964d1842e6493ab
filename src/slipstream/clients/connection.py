"""`Client`: a program that uses a served model; `Connection`: its settings for one, and what works.

A key is named by its variable or its file, and stands in no setting and on no screen.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from slipstream.clients.apis import Api
from slipstream.clients.config_files import ConfigFile, Written
from slipstream.clients.served import ServedModel
from slipstream.records import Record

Environment = Mapping[str, str]


class Check(Record):
    """One requirement of a client; `works` is None if that is unknown."""

    what: str
    works: bool | None
    message: str
    hint: str | None = None

    @field_validator("message")
    @classmethod
    def keep_printable(cls, message: str) -> str:
        """Replace characters that would act on a terminal, since a server's text is quoted."""
        return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in message)


class Setup(Record):
    """The settings of a client for a server: for one shell, and permanently.

    `key_variables` are given the key; `cleared` are variables that would send another's key to
    this server. `written_command` is for the files in place.
    """

    variables: dict[str, str] = Field(default_factory=dict)
    key_variables: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    written_command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Connection(Setup):
    """A client's settings with the server that they are for, what was checked and written.

    `trust` names the server's certificate; it is needed with and without files.
    """

    schema_version: Literal[1] = 1
    client: str
    title: str
    run: str | None
    url: str
    route: str
    model: str
    context: int | None
    key_required: bool | None
    key_source: str
    trust: dict[str, str]
    written_key_variables: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    written: tuple[Written, ...] = ()


class Client(ABC):
    """A program, the API that it uses and its requirements."""

    name: str
    title: str
    api: Api
    install: str
    # The tokens of an agent's first request with its tools, counted with SmolLM2's tokenizer.
    agent_context: int | None = None
    more_routes: tuple[str, ...] = ()
    wants_plain_name: bool = False
    # Its file has a command that prints the key, so that no variable has to.
    runs_key_command: bool = False
    key_header: str = "Authorization"
    trust_variable: str = "SSL_CERT_FILE"

    @abstractmethod
    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        """Return its settings for a server."""

    @property
    def route(self) -> str:
        """The route of its requests for answers."""
        return f"POST {self.api.path}"

    @property
    def routes(self) -> tuple[str, ...]:
        """Every route that it needs."""
        return (self.route, *self.more_routes)

    def make_headers(self, key: str | None) -> dict[str, str]:
        """Return the headers that the client sends beside its body."""
        version = {"anthropic-version": "2023-06-01"} if self.api.path == "/v1/messages" else {}
        if key is None:
            return version
        bare = self.key_header == "x-api-key"
        return {**version, self.key_header: key if bare else f"Bearer {key}"}

    def connect(self, served: ServedModel, environment: Environment) -> Connection:
        """Return the settings for a server, under the names that clients reach it by."""
        reached, key = served.for_clients(), served.key
        setup = self.set_up(reached, environment)
        certificate = served.certificate
        lasting = key.is_used and not self.runs_key_command
        notes = setup.notes
        if served.url != reached.url:
            name, host = urlsplit(reached.url).hostname, urlsplit(served.url).hostname
            lead = f"the certificate is for {name}, which has to lead to {host}: see /etc/hosts"
            notes = (*notes, lead)
        return Connection(
            **dict(setup.model_copy(update={"notes": notes})),
            client=self.name,
            title=self.title,
            run=served.run.id if served.run else None,
            url=reached.url,
            route=self.route,
            model=served.name,
            context=served.context,
            key_required=key.required,
            key_source=key.for_shell(),
            trust={self.trust_variable: str(certificate.file.absolute())} if certificate else {},
            written_key_variables=setup.key_variables if lasting else (),
        )


class ClientSummary(Record):
    """A client in the list of them."""

    name: str
    title: str
    route: str
    install: str


class ClientList(Record):
    """All clients."""

    schema_version: Literal[1] = 1
    clients: tuple[ClientSummary, ...]
