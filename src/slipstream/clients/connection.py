"""`Connection`: a client's settings for a server, and what works."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, JsonValue

from slipstream.clients.checks import Check
from slipstream.clients.client import Client, Setup
from slipstream.clients.config_files import Written
from slipstream.clients.merging import merge
from slipstream.clients.served import ServedModel
from slipstream.records import Record


class FileEntries(Record):
    """A configuration file, its entries, and their text in a file of their own."""

    path: str
    entries: dict[str, JsonValue]
    text: str


class Connection(Record):
    """The settings of a client; a key is named by its variable and never included."""

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
    variables: dict[str, str]
    key_variables: tuple[str, ...]
    cleared: tuple[str, ...]
    trust: dict[str, str]
    command: tuple[str, ...]
    files: tuple[FileEntries, ...]
    written_command: tuple[str, ...]
    written_key_variables: tuple[str, ...]
    notes: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    written: tuple[Written, ...] = ()


class ClientSummary(Record):
    """A client in the list of them."""

    name: str
    title: str
    route: str
    install: str


class ClientList(Record):
    """All clients."""

    schema_version: Literal[1] = 1
    clients: tuple[ClientSummary, ...] = Field(default_factory=tuple)


def list_clients(clients: Mapping[str, Client]) -> ClientList:
    """Return the clients as they are listed."""
    return ClientList(
        clients=tuple(
            ClientSummary(
                name=one.name, title=one.title, route=f"POST {one.api.path}", install=one.install
            )
            for one in clients.values()
        )
    )


def describe(client: Client, served: ServedModel, setup: Setup) -> Connection:
    """Return a client's settings for a server, under the names that clients reach it by."""
    reached = served.for_clients()
    return Connection(
        client=client.name,
        title=client.title,
        run=served.run.id if served.run else None,
        url=reached.url,
        route=f"POST {client.api.path}",
        model=served.name,
        context=served.context,
        key_required=served.key.required,
        key_source=served.key.for_shell(),
        variables=dict(setup.variables),
        key_variables=setup.key_variables,
        cleared=setup.cleared,
        trust=dict(setup.trust),
        command=setup.command,
        files=tuple(
            FileEntries(path=str(file.path), entries=dict(file.entries), text=merge("", file)[0])
            for file in setup.files
        ),
        written_command=setup.written_command,
        written_key_variables=setup.written_key_variables,
        notes=(*setup.notes, *_explain_address(served, reached)),
    )


def _explain_address(served: ServedModel, reached: ServedModel) -> tuple[str, ...]:
    if served.url == reached.url:
        return ()
    name, host = urlsplit(reached.url).hostname, urlsplit(served.url).hostname
    return (f"the certificate is for {name}, which has to lead to {host}: see /etc/hosts",)
