"""A report of the engine's core, as it sends one."""

import os
import time
from typing import Any

from slipstream.steering.state import SteeringState


def make_report(**changes: Any) -> dict[str, Any]:
    """Return a report of this moment, with some keys changed."""
    report: dict[str, Any] = {
        "schema_version": 1,
        "pid": os.getpid(),
        "at": time.time(),
        "steers": True,
        "draft_length": 5,
        "longest": 7,
        "least": None,
        "most": None,
        "plain_pays": False,
        "running": 3,
        "waiting": 1,
        "kv_usage": 0.12,
        "memory_mib": 1400,
        "steps": 8123,
        "step_seconds": 0.061,
        "tokens": 23111,
        "tokens_per_second": 55.2,
        "kinds": {
            "code": {
                **{"requests": 12, "aborted": 1, "tokens": 4000, "steps": 1500},
                **{"drafts": 1400, "drafted": 9800},
                "accepted": [1100, 800, 500, 300, 200, 100, 50],
            },
            "prose": {
                **{"requests": 3, "aborted": 0, "tokens": 900, "steps": 700},
                **{"drafts": 690, "drafted": 3450, "accepted": [300, 90, 20, 5, 0]},
                **{"copies": 9, "copied": 120, "copied_accepted": 80},
            },
        },
        "lengths": [
            make_estimate(0, 0.030, 1.0, 100.0),
            make_estimate(3, 0.050, 2.3, 138.0),
            make_estimate(5, 0.061, 2.9, 142.6),
        ],
    }
    return report | changes


def make_estimate(length: int, step: float, per_step: float, speed: float) -> dict[str, Any]:
    return {
        "draft_length": length,
        "step_seconds": step,
        "tokens_per_step": per_step,
        "tokens_per_second": speed,
        "steps": 64,
    }


def make_state(**changes: Any) -> SteeringState:
    return SteeringState.model_validate(make_report(**changes))
