"""The gate's settings, with their defaults, and the user's rules for them in `gate.toml`.

vLLM's API process imports this module: it imports nothing that is heavy.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from slipstream.atomic_files import write_even_if_full
from slipstream.errors import InvalidInputError
from slipstream.records import Record, read_toml
from slipstream.serving.access.keys import Key, KeyTerms, Scope
from slipstream.steering.state import Kind

# With a letter in its last part: an address in digits is no name.
_HOST = re.compile(r"(?:[a-z0-9-]{1,63}\.)+[a-z][a-z0-9-]{0,62}")
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".lan", ".home.arpa")

GATE_VARIABLE = "SLIPSTREAM_GATE"
GATE_CLASS = "slipstream.vllm_plugin.gate.middleware.Gate"

Route = Literal[
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "GET /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v1/score",
    "POST /pooling",
    "POST /tokenize",
    "POST /detokenize",
    "GET /v1/models",
]
# Under the names that keys have for them.
ROUTES: dict[str, tuple[Route, ...]] = {
    "chat": ("POST /v1/chat/completions",),
    "completions": ("POST /v1/completions",),
    "responses": (
        "POST /v1/responses",
        "GET /v1/responses/{id}",
        "POST /v1/responses/{id}/cancel",
    ),
    "messages": ("POST /v1/messages", "POST /v1/messages/count_tokens"),
    "embeddings": ("POST /v1/embeddings",),
    "rerank": ("POST /v1/rerank",),
    "score": ("POST /v1/score",),
    "pooling": ("POST /pooling",),
    "tokenize": ("POST /tokenize",),
    "detokenize": ("POST /detokenize",),
    "models": ("GET /v1/models",),
}
USUAL_ROUTES = ("chat", "completions", "responses", "messages", "models")
# Of a model that gives vectors or scores, which has none of those that generate.
POOLING = frozenset(
    route for name in ("embeddings", "rerank", "score", "pooling") for route in ROUTES[name]
)
GENERATING = frozenset(
    route for name in ("chat", "completions", "responses", "messages") for route in ROUTES[name]
)
RULES_HINT = "docs/gate.md has every key with its default"


class GateLimits(Record):
    # In all, with TLS handshakes; and how long a client may leave its answer unread.
    connections: PositiveInt = 1024
    stall_seconds: PositiveFloat = 60
    headers: PositiveInt = 100
    head_bytes: PositiveInt = 2**16
    head_seconds: PositiveFloat = 10
    body_bytes: PositiveInt = 2 * 2**20
    body_seconds: PositiveFloat = 20
    # Of JSON, texts as one each; tokens by their numbers do not count.
    values: PositiveInt = 12_000
    turns: PositiveInt = 2048
    depth: PositiveInt = 64
    n: PositiveInt = 8
    prompts: PositiveInt = 16
    sequences: PositiveInt = 32
    top_logprobs: NonNegativeInt = 20
    max_tokens: PositiveInt | None = None
    stop_strings: NonNegativeInt = 4
    stop_characters: PositiveInt = 256
    list_items: PositiveInt = 1024
    regex_characters: PositiveInt = 2048
    grammar_characters: PositiveInt = 2**14
    schema_bytes: PositiveInt = 2**16
    # What compiling a constraint may take: milliseconds of a core.
    schema_units: PositiveInt = 3000


class GateMedia(Record):
    """The limits for images in a request; `waiting_bytes` is for all requests together."""

    images: PositiveInt = 16
    image_bytes: PositiveInt = 5 * 2**20
    request_bytes: PositiveInt = 20 * 2**20
    waiting_bytes: PositiveInt = 512 * 2**20
    pixels: PositiveInt = 2**24
    # Whose images the engine may fetch; without any, images come with the request only.
    hosts: tuple[str, ...] = ()

    @field_validator("hosts")
    @classmethod
    def require_public_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Raise unless these are host names, and none of this machine or its network."""
        for host in hosts:
            if not _HOST.fullmatch(host) or host.endswith(_PRIVATE_ENDINGS):
                raise ValueError(f"'{host}' is not a public host name in lower case")
        return hosts


class GateRecording(Record):
    """A folder for recorded requests, its size limit, and patterns of text to remove."""

    folder: Path
    limit_bytes: PositiveInt = 256 * 2**20
    redact: tuple[str, ...] = ()

    @field_validator("redact")
    @classmethod
    def compile_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as fault:
                raise ValueError(f"'{pattern}' is not a pattern: {fault}") from fault
        return patterns


class KeyDefaults(KeyTerms):
    """The limits of keys that set none themselves; None is no limit."""

    routes: tuple[Scope, ...] | None = tuple(one for one in get_args(Scope) if one != "metrics")
    concurrent_requests: PositiveInt | None = 64
    weight: PositiveFloat = 1
    priority: int = 0
    drafts: Literal["on", "off"] = "on"
    learning: Literal["on", "off"] = "on"


class GateRules(Record):
    """The content of `gate.toml`: what the user decides, each setting with its default."""

    routes: tuple[Route, ...] = tuple(route for name in USUAL_ROUTES for route in ROUTES[name])
    # Even if there is no key file, or no longer: then nobody gets in.
    keys_required: bool = False
    # For a seat in the engine: how many requests of all keys, with how large bodies, how long.
    waiting_requests: PositiveInt = 512
    waiting_bytes: PositiveInt = 256 * 2**20
    waiting_seconds: PositiveFloat = 300
    # Of one key; schemas that the engine has seen lately are free.
    new_schemas_per_minute: PositiveInt = 30
    schema_units_per_minute: PositiveInt = 6000
    # Of one caller, after the first hundred: a refusal costs about 2 ms of a core.
    refusals_per_second: PositiveFloat = 50
    retry_after_seconds: PositiveInt = 5
    unsupported_sampling: Literal["drop", "refuse"] = "drop"
    long_answers: Literal["clamp", "refuse"] = "refuse"
    # Some grammars and patterns stop the engine for everybody: "any" is for callers one trusts.
    constraints: Literal["plain", "any"] = "plain"
    # Of requests that are answered without drafts.
    plain_kinds: tuple[Kind, ...] = ()
    template_arguments: tuple[str, ...] = ("enable_thinking", "thinking")
    limits: GateLimits = Field(default_factory=GateLimits)
    media: GateMedia = Field(default_factory=GateMedia)
    keys: KeyDefaults = Field(default_factory=KeyDefaults)

    @field_validator("routes", mode="before")
    @classmethod
    def name_routes(cls, routes: Any) -> Any:
        if not isinstance(routes, list):
            return routes
        return [route for one in routes for route in ROUTES.get(one, (one,))]


class GateSettings(GateRules):
    """All settings of the gate; `host` is the engine's address, or the path of its socket."""

    schema_version: Literal[1] = 1
    host: str = "127.0.0.1"
    keys_file: Path | None = None
    # A line a request; a file that is full is moved aside, and so many of those are kept.
    access_log: Path | None = None
    access_log_bytes: PositiveInt = 32 * 2**20
    access_logs_kept: NonNegativeInt = 3
    served_names: tuple[str, ...] = ()
    # How many requests the engine works on at the same time; None shares nothing out.
    seats: PositiveInt | None = None
    context: PositiveInt | None = None
    # Whether the engine orders requests by priority; otherwise it refuses one.
    priorities: bool = False
    # The hash of the supervisor's own key, which passes while draining and is not recorded.
    probe_sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    # Where the run's supervisor listens (serving/messages.py).
    socket: Path | None = None
    speculation: bool = False
    # Whether the engine keeps a ledger, for which each request tells whose and of what kind it is.
    tags: bool = False
    # Whether the model writes text; otherwise it gives vectors or scores.
    generates: bool = True
    text_only: bool = True
    recording: GateRecording | None = None

    @property
    def longest_body(self) -> int:
        """The largest body in bytes, with all its images in base64."""
        images = 0 if self.text_only else -(-self.media.request_bytes // 3) * 4
        return self.limits.body_bytes + images

    def limit_answers(self, most: int | None) -> "GateSettings":
        """Return the settings for a key whose answers may not be longer."""
        if most is None:
            return self
        own = min(most, self.limits.max_tokens or most)
        limits = self.limits.model_copy(update={"max_tokens": own})
        return self.model_copy(update={"limits": limits})

    def follow(self, rules: GateRules) -> "GateSettings":
        """Return these settings with other rules; the rest is of the engine that was started."""
        changed = {name: getattr(rules, name) for name in GateRules.model_fields}
        return self.model_copy(update=changed)

    def write(self, path: Path) -> None:
        write_even_if_full(path, self.to_json().encode())


def require_key_for(host: str, keys: Sequence[Key], *, now: datetime) -> None:
    """Raise if the server would listen to other machines without a valid key."""
    if not is_loopback(host) and not any(key.is_valid(now) for key in keys):
        where = host or "every address"
        raise InvalidInputError(
            f"other machines can reach {where}, and there is no valid key",
            hint="slipstream keys new",
        )


def is_loopback(host: str) -> bool:
    """Return whether an address, or the path of a socket, is of this machine only."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ip_address(host.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def read_rules(path: Path) -> GateRules:
    """Return the rules of a file; all faults are reported, a misspelt key with the nearest name."""
    return read_toml(path, GateRules, called="rules", hint=RULES_HINT)


def apply_rules(settings: GateSettings, rules: GateRules, *, keys_required: bool) -> GateSettings:
    """Return a gate's settings with other rules; keys that were once required stay so."""
    changed = {
        "routes": _choose_routes(rules.routes, generates=settings.generates),
        "keys_required": rules.keys_required or keys_required,
    }
    return settings.follow(rules.model_copy(update=changed))


def _choose_routes(routes: tuple[Route, ...], *, generates: bool) -> tuple[Route, ...]:
    """Return the routes that the model can answer; one of vectors has its own without asking."""
    if generates:
        return tuple(route for route in routes if route not in POOLING)
    kept = tuple(route for route in routes if route not in GENERATING)
    return kept if POOLING & {*kept} else (*kept, *sorted(POOLING))
