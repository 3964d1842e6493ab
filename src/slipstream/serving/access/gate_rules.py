"""`gate.toml`: the user's rules for the gate, read and validated."""

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from slipstream.errors import InvalidInputError
from slipstream.records import describe_faults
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
    try:
        return GateRules.model_validate(tomllib.loads(path.read_text()))
    except OSError as fault:
        what = f"cannot read {path}: {fault.strerror or fault}"
        raise InvalidInputError(what, hint=RULES_HINT) from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise InvalidInputError(f"{path} is not TOML: {fault}", hint=RULES_HINT) from fault
    except ValidationError as fault:
        raise InvalidInputError(
            f"{path} cannot be the gate's rules", details=_describe(fault), hint=RULES_HINT
        ) from fault


def apply_rules(settings: GateSettings, rules: GateRules, *, keys_required: bool) -> GateSettings:
    """Return a gate's settings with other rules; keys that were once required stay so."""
    changed = {name: getattr(rules, name) for name in GateRules.model_fields}
    changed["routes"] = _choose_routes(rules.routes, generates=settings.generates)
    changed["keys_required"] = rules.keys_required or keys_required
    return settings.model_copy(update=changed)


def _choose_routes(routes: tuple[Route, ...], *, generates: bool) -> tuple[Route, ...]:
    """Return the routes that the model can answer; one of vectors has its own without asking."""
    if generates:
        return tuple(route for route in routes if route not in POOLING)
    kept = tuple(route for route in routes if route not in GENERATING)
    return kept if POOLING & {*kept} else (*kept, *sorted(POOLING))


def _describe(fault: ValidationError) -> tuple[str, ...]:
    return tuple(
        f"{said}{_find_meant(entry['loc'])}" if entry["type"] == "extra_forbidden" else said
        for said, entry in zip(describe_faults(fault), fault.errors(), strict=True)
    )


def _find_meant(steps: tuple[int | str, ...]) -> str:
    """Return the valid key that is nearest to a misspelt one."""
    kind: Any = GateRules
    for step in steps[:-1]:
        kind = kind.model_fields[step].annotation
    assert issubclass(kind, BaseModel)
    close = difflib.get_close_matches(str(steps[-1]), kind.model_fields, n=1)
    return f"; is {close[0]} meant?" if close else ""
