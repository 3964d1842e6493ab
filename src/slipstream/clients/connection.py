"""`Client`: a program that uses a served model; `Connection`: its settings for one, and what works.

A key is named by its variable or its file, and stands in no setting and on no screen.
"""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from slipstream.checkpoints.reading import read_checkpoint
from slipstream.clients.apis import Api
from slipstream.clients.config_files import ConfigFile, Written
from slipstream.errors import InvalidInputError
from slipstream.measuring.client.endpoint import KEY_VARIABLE, Endpoint, read_served_model
from slipstream.planning.settings import Choice, EngineOptions
from slipstream.planning.settings.conversation import SHOWS_NO_TOOLS
from slipstream.records import Record
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.gate_file import GateRules
from slipstream.serving.access.own_listener import OwnListener, Watch
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.run import Run
from slipstream.serving.selection import find_server
from slipstream.serving.supervision.engine_session import list_session

NO_KEY = "none"
PARSER_HINT = (
    "slipstream serve TARGET -- --enable-auto-tool-choice --tool-call-parser PARSER; "
    "docs/families.md has the parsers by family"
)
Environment = Mapping[str, str]


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
        return bool(self.required or self.secret)

    def for_shell(self) -> str:
        """Return the word that a shell expands to the key; clients insist on some value."""
        if not self.is_used:
            return NO_KEY
        return f'"$({self.make_command()})"' if self.file else f'"${KEY_VARIABLE}"'

    def make_command(self) -> str:
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
    certificate: TlsCertificate | None = None
    run: Run | None = None

    @property
    def name(self) -> str:
        """The name that clients request, preferably without a slash."""
        return next((name for name in self.names if "/" not in name), self.names[0])

    @property
    def api_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def answer_tokens(self) -> int | None:
        """The longest answer to allow: a quarter of the context, the rest being the prompt's."""
        return None if self.context is None else max(1, min(32_000, self.context // 4))

    def watch(self) -> Watch | None:
        """Return a trace that lets a request go to the run's own engine only, if it is a run."""
        if self.run is None:
            return None
        engine = self.run.engine
        return OwnListener(
            Address.of(self.run.plan),
            lambda: [one.pid for one in list_session(engine)] if engine else [],
        ).watch()

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
            f"{run.id} listens at the Unix socket {address.socket}, which no client can use",
            hint="without --uds: slipstream serve TARGET --port 8000",
        )
    return ServedModel(
        url=address.url,
        names=run.plan.settings.list_served_names(),
        context=run.plan.context,
        key=replace(key, required=run.terms.needs_key),
        certificate=address.certificate,
        run=run,
    )


def find_served(root: Path, name: str | None, key: ClientKey, *, hint: str) -> ServedModel:
    """Return a live run by its id or address, the newest without, or the server at any address."""
    url, run = find_server(root, name, hint=hint)
    if run is not None:
        return describe_run(run, key)
    endpoint = Endpoint(url, key=key.secret)
    model, context = read_served_model(endpoint)
    return ServedModel(url=str(endpoint.base), names=(model,), context=context, key=key)


class ConnectionCheck(Record):
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
    checks: tuple[ConnectionCheck, ...] = ()
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
        return f"POST {self.api.path}"

    @property
    def routes(self) -> tuple[str, ...]:
        return (self.route, *self.more_routes)

    def make_headers(self, key: str | None) -> dict[str, str]:
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
            lead = f"the certificate is for {name}, which must resolve to {host}: see /etc/hosts"
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
    name: str
    title: str
    route: str
    install: str


class ClientList(Record):
    schema_version: Literal[1] = 1
    clients: tuple[ClientSummary, ...]


def _serve_again(run: Run, *words: str, **engine: Any) -> str:
    """Return the commands that serve a run's pair anew, with further words and settings."""
    changed = {"port": Address.of(run.plan).port} | engine
    choices = {name: Choice(value, "user", "requested") for name, value in changed.items()}
    options = run.plan.options.specify(EngineOptions().change(**choices))
    again = shlex.join(["slipstream", "serve", run.plan.target, *words, *options.list_words()])
    return f"slipstream stop {shlex.quote(run.id)}; {again}"


def _hint_context(run: Run, needed: int) -> str:
    """Return the command with room for an agent, within what a local model reads."""
    target = run.plan.target
    local = Path(target).is_dir()
    limit = read_checkpoint(target, tokenizer=False).context if local else None
    if limit is not None and limit < needed:
        return f"its model reads at most {limit:,} tokens; for others: slipstream models"
    roomy = -(-3 * needed // 8192) * 8192
    context = roomy if limit is None else min(roomy, limit)
    return _serve_again(run, context=context)


def check_plan(client: Client, served: ServedModel) -> list[ConnectionCheck]:
    """Return what the plan of a run keeps from a client, without a request."""
    run = served.run
    if run is None:
        return []
    checks = []
    if served.key.required and not served.key.secret:
        message = f"the server needs a key, and there is none in {KEY_VARIABLE} or --key FILE"
        hint = f"slipstream keys new --name {client.name} > {client.name}.key; "
        hint += f"slipstream connect {client.name} --key {client.name}.key"
        checks.append(ConnectionCheck(what="key", works=False, message=message, hint=hint))
    if client.wants_plain_name and "/" in served.name:
        message = f"{client.title} accepts no model name with a slash, such as {served.name}"
        short = served.name.rpartition("/")[2]
        hint = _serve_again(run, served_names=(short, served.name))
        checks.append(ConnectionCheck(what="model name", works=False, message=message, hint=hint))
    rules = run.terms.gate_rules or GateRules()
    closed = [route for route in client.routes if route not in rules.routes]
    if run.terms.gated and closed:
        routes = ", ".join(f'"{route}"' for route in (*rules.routes, *closed))
        hint = f"with routes = [{routes}] in FILE: {_serve_again(run, '--gate', 'FILE')}"
        checks.append(
            ConnectionCheck(what="route", works=False, message=f"closed: {closed[0]}", hint=hint)
        )
    needed = client.agent_context
    if needed and served.context and served.context < needed:
        message = f"{client.title} sends about {needed:,} tokens at first, and the context is "
        message += f"{served.context:,}"
        hint = _hint_context(run, needed)
        checks.append(ConnectionCheck(what="context", works=False, message=message, hint=hint))
    if needed and run.plan.settings.tool_parser is None:
        message, hint = "the engine has no tool-call parser: calls come as text", PARSER_HINT
        if any(SHOWS_NO_TOOLS in note for note in run.plan.notes):
            message = f"the chat template {SHOWS_NO_TOOLS}: take another target, or a template"
            parsed = "--chat-template FILE --enable-auto-tool-choice --tool-call-parser NAME"
            hint = f"{_serve_again(run)} {parsed}; others: slipstream models"
        checks.append(ConnectionCheck(what="tool calls", works=False, message=message, hint=hint))
    return checks
