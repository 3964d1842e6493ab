"""A report of the engine's core, of a moment that the tests agree on."""

from typing import Any

from slipstream.steering.state import SteeringState
from tests.unit.serving.kept_runs import AT
from tests.unit.vllm_plugin.steering.reports import make_report


def make_state(**changes: Any) -> SteeringState:
    fixed = {"at": AT.timestamp(), "pid": 4730}
    return SteeringState.model_validate(make_report(**fixed | changes))
