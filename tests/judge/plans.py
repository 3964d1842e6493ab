"""The plans that are judged: every model on one machine of each compute capability.

Machines of the same capability get the same rules, so one of them stands for all: each model is
planned there on the fewest accelerators that hold it. What depends on the goal is judged where
most people serve. Plans of the same model on machines of a kind that differ in nothing but sizes
are judged once. Each version of vLLM gets the plan that is made for it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from pydantic import TypeAdapter

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.engines.vllm_tables import VERSION, VERSIONS
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, make_options
from slipstream.planning.drafters.library import Library
from slipstream.planning.drafters.resolution import plan_target
from slipstream.planning.settings.options import Goal
from slipstream.recipes import load_drafters, load_known_bad, load_models, load_recipes_for
from tests.judge import checkpoints

# By capability: 8.0, 8.6, 8.9, 9.0, 10.0, 10.3, 11.0, 12.0, 12.1.
MACHINES = ["a100-80", "rtx-3090", "rtx-4090", "h100", "b200", "b300", "jetson-thor", "rtx-5090"]
MACHINES += ["gb10"]
ONE_ACCELERATOR = ("jetson-thor", "gb10")
COUNTS = (1, 2, 4, 8)
STEERED = "steering"
GOALS = {
    "h100": ("throughput", "agent", "capacity", STEERED),
    "gb10": ("throughput", "agent", "capacity", STEERED),
    "rtx-5090": (STEERED,),
    "b200": ("capacity",),
}
_SPECULATION = "--speculative-config"
# They differ from one machine to the next, and no rule of vLLM's reads them with the others.
_SIZES = ["--max-model-len", "--max-num-seqs", "--max-num-batched-tokens"]
_SIZES += ["--gpu-memory-utilization"]


@dataclass(frozen=True, slots=True)
class JudgedPlan:
    """A plan for each version, and its machine as the stub of NVML names it."""

    key: str
    machine: str
    plans: Mapping[str, LaunchPlan]

    @property
    def plan(self) -> LaunchPlan:
        return self.plans[VERSION]

    @property
    def sha256(self) -> str:
        """Return what changes with a command line or variables."""
        said = [[self.argv(one), self.environment(one)] for one in self.plans]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    def argv(self, version: str = VERSION) -> list[str]:
        command = self.plans[version].argv()
        return command[command.index("--model") :]

    def environment(self, version: str = VERSION) -> dict[str, str]:
        return {name: one.value for name, one in self.plans[version].environment.items()}

    def left_out(self, version: str = VERSION) -> str | None:
        """Return the drafter if its configuration is not among the models."""
        drafter = self.plans[version].drafter
        return None if drafter in checkpoints.load_models() else drafter

    def localize(self, folder: Path, version: str) -> list[str]:
        """Return the command line with folders in place of names on the hub."""
        argv = self.argv(version)
        argv[1] = str(checkpoints.write_checkpoint(argv[1], folder))
        if _SPECULATION not in argv:
            return argv
        at = argv.index(_SPECULATION)
        stated = json.loads(argv[at + 1])
        if (drafter := stated.get("model")) is None:
            return argv
        if self.left_out(version):
            return argv[:at] + argv[at + 2 :]
        stated["model"] = str(checkpoints.write_checkpoint(drafter, folder))
        argv[at + 1] = json.dumps(stated)
        return argv


def list_plans(folder: Path) -> Iterator[JudgedPlan]:
    """Plan what is judged, with checkpoints that are written to a folder."""
    library = make_library(folder)
    for machine in MACHINES:
        seen: set[str] = set()
        for target in checkpoints.list_targets():
            for goal in ("latency", *GOALS.get(machine, ())):
                judged = _plan_fewest(target, machine, goal, library)
                if judged is not None and (shape := _describe_shape(judged)) not in seen:
                    seen.add(shape)
                    yield judged


def _plan_fewest(target: str, machine: str, goal: str, library: Library) -> JudgedPlan | None:
    """Return the plan on the fewest accelerators that hold the model, None if eight do not."""
    counts = (1,) if machine in ONE_ACCELERATOR else COUNTS
    tried = (plan_key(f"{target} on {machine}x{count} for {goal}", library) for count in counts)
    return next((judged for judged in tried if not judged.plan.refusals), None)


def plan_key(key: str, library: Library) -> JudgedPlan:
    """Make the plan that a line of the table is about."""
    target, _, place = key.partition(" on ")
    machine, _, goal = place.partition(" for ")
    kind, _, count = machine.rpartition("x")
    host = load_host(kind if count == "1" else machine)
    named = "latency" if goal == STEERED else goal
    options = make_options(goal=TypeAdapter(Goal).validate_python(named), steer=goal == STEERED)
    plans = {
        version: plan_target(
            host,
            target,
            options.model_copy(update={"vllm": version}),
            library,
            known_bad=load_known_bad(),
        )
        for version in VERSIONS
    }
    return JudgedPlan(key, f"{kind}:{count}", plans)


def _describe_shape(judged: JudgedPlan) -> str:
    argv = judged.argv()
    kept = [word for at, word in enumerate(argv) if at == 0 or argv[at - 1] not in _SIZES]
    return json.dumps([kept, judged.environment()])


def make_library(folder: Path) -> Library:
    known = cache(partial(checkpoints.read_known, folder=folder))

    def read(name: str, *, tokenizer: bool) -> Checkpoint:
        return known(name)

    recipes = cache(partial(load_recipes_for, overlay=None))
    return Library(read, recipes, load_drafters, load_models, None)
