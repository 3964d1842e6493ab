"""The one way a file of `--profile` becomes an `EngineSpeed`, whichever of the forms it has."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.records import describe_faults
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.ledger_speed import take_ledger
from slipstream.sizing.profile_speed import take_profile, take_state
from slipstream.steering.ledger import read_ledger
from slipstream.steering.state import SteeringState
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.tuner import Tuning

USUAL_SEQUENCES = 16
MOST_BYTES = 1 << 27
_HINT = "the output of tune --json or status RUN --json, or a run's ledger.jsonl"


def read_speed(path: Path) -> EngineSpeed:
    """Read a tuning, a speed profile, a ledger, a controller's state, or what `size` printed."""
    if path.suffix == ".jsonl":
        return take_ledger(list(read_ledger([path])), path.name)
    document = _read_document(path)
    try:
        if "starts" in document:
            tuning = Tuning.model_validate(document)
            seconds = [start.start_seconds for start in tuning.starts]
            return take_profile(tuning.profile, seconds, path.name)
        if "step_time" in document:
            return take_profile(SpeedProfile.model_validate(document), (), path.name)
        if document.get("steering"):
            state = SteeringState.model_validate(document["steering"][0])
            return take_state(state, max(state.running, USUAL_SEQUENCES), path.name)
        return EngineSpeed.model_validate(document.get("speed", document))
    except ValidationError as fault:
        raise InvalidInputError(
            f"{path} has no speed of an engine that this version reads",
            details=describe_faults(fault)[:8],
            hint=_HINT,
        ) from fault


def _read_document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInputError(f"{path} is larger than {MOST_BYTES >> 20} MiB", hint=_HINT)
        document = json.loads(path.read_bytes())
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read {path}: {fault.strerror or fault}", hint=_HINT
        ) from fault
    except (ValueError, RecursionError) as fault:
        raise InvalidInputError(f"{path} is not JSON", hint=_HINT) from fault
    if not isinstance(document, dict):
        raise InvalidInputError(f"{path} is no document", hint=_HINT)
    return document
