"""The gate's settings, from the file that SLIPSTREAM_GATE names.

`slipstream.serving.access.gate_file` writes it and has the defaults. Here every key must be there
and no other may be: an engine with half a gate does not start. The file holds no key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "SLIPSTREAM_GATE"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one request may ask for."""

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
class Recording:
    """Where requests are kept, how many bytes of them, and what is struck out."""

    folder: str
    limit_bytes: int
    redact: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the gate is told."""

    host: str
    routes: tuple[str, ...]
    keys_file: str | None
    probe_sha256: str | None
    state_file: str | None
    accounting_folder: str | None
    requests_per_key: int
    new_schemas_per_minute: int
    schema_units_per_minute: int
    refusals_per_second: float
    retry_after_seconds: int
    speculation: bool
    unsupported_sampling: str
    long_answers: str
    text_only: bool
    constraints: str
    template_arguments: tuple[str, ...]
    limits: Limits
    recording: Recording | None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the named file, or keep the engine from starting."""
    path = environment.get(VARIABLE)
    if not path:
        raise RuntimeError(f"{VARIABLE} does not name the gate's settings file")
    try:
        return _make_settings(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError, TypeError, LookupError) as fault:
        raise RuntimeError(f"the gate cannot use its settings in {path}: {fault}") from fault


def _make_settings(document: dict[str, Any]) -> Settings:
    if (version := document.pop("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}, not {SCHEMA_VERSION}")
    limits = Limits(**document.pop("limits"))
    if (recording := document.pop("recording")) is not None:
        recording = Recording(**_freeze(recording))
    return Settings(**_freeze(document), limits=limits, recording=recording)


def _freeze(document: dict[str, Any]) -> dict[str, Any]:
    """Turn lists into tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
