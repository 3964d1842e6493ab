"""A report of the engine's core, of a moment that the tests agree on."""

from typing import Any

from slipstream.steering.state import SteeringState
from tests.unit.serving.kept_runs import AT
from tests.unit.vllm_plugin.steering import reports


def make_state(**changes: Any) -> SteeringState:
    return reports.make_state(**{"at": AT.timestamp(), "pid": 4730} | changes)
