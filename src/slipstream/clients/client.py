"""`Client`: a program that uses a served model; `Setup`: its settings for one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from slipstream.clients.apis import Api
from slipstream.clients.served import ServedModel

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file of a client, and the entries to add to it.

    `list_key` is for a list of entries: the one that has this key's value is replaced.
    """

    path: Path
    form: Literal["json", "toml", "yaml"]
    entries: Mapping[str, JsonValue]
    list_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a client for a server: for one shell, and permanently.

    `key_variables` are given the key, which stands in no file and on no screen; `cleared` are
    variables that would send another's key to this server.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    key_variables: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    # With the files in place; the key is then taken from here.
    written_command: tuple[str, ...] = ()
    written_key_variables: tuple[str, ...] = ()
    # Needed with and without files, where the server has a certificate.
    trust: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program, the API that it uses and its requirements."""

    name: str
    title: str
    api: Api
    routes: tuple[str, ...]
    set_up: Callable[[ServedModel, Environment], Setup]
    install: str
    # Of its first request with its tools, in tokens of SmolLM2.
    least_context: int | None = None
    calls_tools: bool = False
    counts_tokens: bool = False
    wants_plain_name: bool = False
    key_header: Literal["Authorization", "x-api-key"] = "Authorization"

    def make_headers(self, key: str | None) -> dict[str, str]:
        """Return the headers that the client sends beside its body."""
        version = {"anthropic-version": "2023-06-01"} if self.api.path == "/v1/messages" else {}
        if key is None:
            return version
        bare = self.key_header == "x-api-key"
        return {**version, self.key_header: key if bare else f"Bearer {key}"}
