"""`gate.toml`: the user's rules for the gate, read and validated."""

from pathlib import Path

from slipstream.records import read_toml
from slipstream.serving.access.gate_file import (
    GENERATING,
    POOLING,
    GateRules,
    GateSettings,
    Route,
)

RULES_HINT = "docs/gate.md has every key with its default"


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
