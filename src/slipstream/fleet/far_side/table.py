"""All that a machine does for a fleet's control machine: each kind of request with its function.

`slipstream fleet far NAME` reads a request as JSON from its standard input, and prints the record
that comes of it. The name is the request's class.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slipstream.errors import UsageError
from slipstream.fleet.balancer.deploying import BalancerRequest, carry_out
from slipstream.fleet.far_side.connections import (
    MeasureLink,
    ReachRequest,
    ServeLink,
    measure_link,
    serve_link,
    try_targets,
)
from slipstream.fleet.far_side.evaluation import EvaluateRun, evaluate_run
from slipstream.fleet.far_side.this_machine import (
    DescribeMachine,
    LocateModel,
    ModelPlace,
    ModelRequest,
    describe_here,
    find_tree,
    hold_model,
)
from slipstream.fleet.machines.lease import LeaseRequest, change_lease
from slipstream.fleet.record import find_folder
from slipstream.hardware import this_machine
from slipstream.records import Record, describe_faults


@dataclass(frozen=True, slots=True)
class Here:
    """The machine that is asked; `say` answers before the end."""

    home: Path
    environment: Mapping[str, str]
    now: datetime
    reply: Callable[[Record], None]

    def find(self, fleet: str) -> Path:
        return self.home / find_folder(fleet)


Function = Callable[[Any, Here], Record | None]
TABLE: dict[type[Record], Function] = {
    BalancerRequest: lambda one, here: carry_out(
        one, here.find(one.fleet), here.environment.get("PATH", os.defpath), here.now
    ),
    DescribeMachine: lambda one, here: describe_here(
        this_machine(here.environment, here.now), one.models
    ),
    EvaluateRun: lambda one, here: evaluate_run(one, here.environment, here.now),
    LeaseRequest: lambda one, here: change_lease(here.find(one.fleet), one, here.now),
    LocateModel: lambda one, here: ModelPlace(tree=str(find_tree(one.model, here.environment))),
    MeasureLink: lambda one, _: measure_link(one),
    ModelRequest: lambda one, here: hold_model(one, here.environment),
    ReachRequest: lambda one, _: try_targets(one),
    ServeLink: lambda one, here: serve_link(one, here.reply),
}
NAMES = {kind.__name__: kind for kind in TABLE}


def answer(name: str, content: bytes, here: Here) -> Record | None:
    kind = NAMES[name]
    try:
        request = kind.model_validate_json(content)
    except ValidationError as fault:
        raise UsageError(
            f"not a {name}: {'; '.join(describe_faults(fault)[:3])}",
            hint="to compare versions: slipstream fleet probe",
        ) from fault
    return TABLE[kind](request, here)
