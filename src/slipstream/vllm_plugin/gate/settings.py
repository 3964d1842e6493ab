"""The gate's settings, from the file that SLIPSTREAM_GATE names.

`slipstream.serving.access.gate_file` writes it and has the defaults. Here every key must be there
and no other may be: an engine with half a gate does not start. The file holds no key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

VARIABLE = "SLIPSTREAM_GATE"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one request."""

    connections: int
    stall_seconds: float
    headers: int
    head_bytes: int
    head_seconds: float
    body_bytes: int
    body_seconds: float
    containers: int
    depth: int
    n: int
    prompts: int
    sequences: int
    top_logprobs: int
    max_tokens: int | None
    stop_strings: int
    stop_characters: int
    list_items: int
    regex_characters: int
    grammar_characters: int
    schema_bytes: int
    schema_units: int


@dataclass(frozen=True, slots=True)
class Media:
    """The limits for pictures in a request, and their allowed hosts."""

    images: int
    image_bytes: int
    request_bytes: int
    waiting_bytes: int
    pixels: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The limits of a key; None is no limit, and lower priorities come first."""

    routes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    requests_at_once: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_tokens: int | None = None
    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """The folder of recorded requests, its size limit, and patterns of text to remove."""

    folder: str
    limit_bytes: int
    redact: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the gate."""

    host: str
    routes: tuple[str, ...]
    keys_file: str | None
    keys_required: bool
    served_names: tuple[str, ...]
    seats: int | None
    context: int | None
    priorities: bool
    probe_sha256: str | None
    state_file: str | None
    accounting_folder: str | None
    steering_file: str | None
    access_log: str | None
    access_log_bytes: int
    access_logs_kept: int
    waiting_requests: int
    waiting_bytes: int
    waiting_seconds: float
    new_schemas_per_minute: int
    schema_units_per_minute: int
    refusals_per_second: float
    retry_after_seconds: int
    speculation: bool
    tags: bool
    generates: bool
    unsupported_sampling: str
    long_answers: str
    text_only: bool
    constraints: str
    template_arguments: tuple[str, ...]
    keys: KeyTerms
    limits: Limits
    media: Media
    recording: Recording | None
    swap_file: str | None

    @property
    def longest_body(self) -> int:
        """The largest body in bytes, with all its pictures in base64."""
        pictures = 0 if self.text_only else -(-self.media.request_bytes // 3) * 4
        return self.limits.body_bytes + pictures

    def limit_answers(self, most: int | None) -> "Settings":
        """Return the settings for a key whose answers may not be longer."""
        if most is None:
            return self
        own = min(most, self.limits.max_tokens or most)
        return replace(self, limits=replace(self.limits, max_tokens=own))

    def follow(self, newer: "Settings") -> "Settings":
        """Return these settings with the changeable part of newer ones."""
        return replace(self, **{name: getattr(newer, name) for name in FOLLOWED})


# The rest is of the engine that was started. Bounds of request heads are set when it starts.
FOLLOWED = (
    *("routes", "keys_required", "waiting_requests", "waiting_bytes", "waiting_seconds"),
    *("new_schemas_per_minute", "schema_units_per_minute"),
    *("refusals_per_second", "retry_after_seconds", "unsupported_sampling", "long_answers"),
    *("constraints", "template_arguments", "keys", "limits", "media"),
)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the named file, or keep the engine from starting."""
    path = environment.get(VARIABLE)
    if not path:
        raise RuntimeError(f"{VARIABLE} does not name the gate's settings file")
    try:
        return make_settings(Path(path).read_bytes())
    except (OSError, ValueError, TypeError, LookupError) as fault:
        raise RuntimeError(f"the gate cannot use its settings in {path}: {fault}") from fault


def make_settings(content: bytes) -> Settings:
    """Read the settings from a file's content."""
    document = json.loads(content)
    if (version := document.pop("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}, not {SCHEMA_VERSION}")
    limits = Limits(**document.pop("limits"))
    media = Media(**_freeze(document.pop("media")))
    keys = KeyTerms(**_freeze(document.pop("keys")))
    if (recording := document.pop("recording")) is not None:
        recording = Recording(**_freeze(recording))
    own = {"keys": keys, "limits": limits, "media": media, "recording": recording}
    return Settings(**_freeze(document), **own)


def _freeze(document: dict[str, Any]) -> dict[str, Any]:
    """Turn lists into tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
