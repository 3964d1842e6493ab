"""The gate's settings, from the file that SLIPSTREAM_GATE names, as the supervisor wrote it.

Every key must be there and no other may be: an engine with half a gate does not start. The file
holds no key.
"""

from collections.abc import Mapping
from pathlib import Path

from slipstream.serving.access.gate_file import (
    GATE_VARIABLE,
    GateLimits,
    GateMedia,
    GateRecording,
    GateSettings,
    KeyDefaults,
)
from slipstream.serving.access.keys import Scope

VARIABLE = GATE_VARIABLE
Limits = GateLimits
Media = GateMedia
Recording = GateRecording
Settings = GateSettings


class KeyTerms(KeyDefaults):
    """The limits of one caller: none unless they are set."""

    routes: tuple[Scope, ...] | None = None
    requests_at_once: int | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the named file, or keep the engine from starting."""
    path = environment.get(VARIABLE)
    if not path:
        raise RuntimeError(f"{VARIABLE} does not name the gate's settings file")
    try:
        return make_settings(Path(path).read_bytes())
    except (OSError, ValueError) as fault:
        raise RuntimeError(f"the gate cannot use its settings in {path}: {fault}") from fault


def make_settings(content: bytes) -> Settings:
    """Read the settings from a file's content, which must have every one of them."""
    settings = Settings.model_validate_json(content)
    parts = (settings, settings.limits, settings.media, settings.keys, settings.recording)
    for part in parts:
        if part and (missing := type(part).model_fields.keys() - part.model_fields_set):
            raise ValueError(f"{type(part).__name__} lacks {', '.join(sorted(missing))}")
    return settings
