"""Published models on the machines that people own: a plan that fits, or a command that works.

The models are those of tests/judge/models, read from files like theirs; nothing is asked of a hub.
"""

import argparse
import shlex
from collections import Counter

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.cli.options import OptionAdder
from slipstream.cli.planning.plan import add_plan_options
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, make_options
from slipstream.planning.drafters.library import Library
from slipstream.planning.drafters.resolution import plan_target
from slipstream.recipes import load_drafters, load_known_bad, load_models, load_recipes_for
from tests.judge.checkpoints import list_targets, read_known
from tests.snapshots import read_snapshot

ALONE: tuple[str, ...] = (
    "rtx-4080-super",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
    "a100-40",
    "a100-80",
)
ALONE += ("l4", "l40s", "h100", "h200", "b200", "b300", "gb10")
SEVERAL = tuple(
    f"{machine}x{count}"
    for machine in ALONE
    for count in ((2, 4) if machine.startswith("rtx") else (2, 4, 8))
    if machine != "gb10"
)
MACHINES = (*ALONE, *SEVERAL, "2x-gb10")
KNOWN_BAD = load_known_bad()
# A card lacks a number format, or a model marks for its tool calls: no setting of ours helps.
ALLOWED = {"emulated", "tool-parser"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("models")

    def read(name: str, *, tokenizer: bool) -> Checkpoint:
        return read_known(name, folder)

    return Library(read, load_recipes_for, load_drafters, load_models).remember()


def plan_on(machine: str, target: str, words: list[str], library: Library) -> LaunchPlan:
    """Plan with the words of a command line."""
    own, _, raw = (part.split() for part in " ".join(words).partition(" -- "))
    adder = OptionAdder(argparse.ArgumentParser())
    adder("--host MACHINE", "the machine")
    add_plan_options(adder)
    given = adder.parser.parse_args(own)
    options = make_options(
        goal=given.goal,
        method=None if given.method == "auto" else given.method,
        context=given.context,
        engine=raw,
    )
    host = load_host(given.host or machine)
    return plan_target(host, target, options, library, known_bad=KNOWN_BAD)


def follow(hint: str, machine: str, target: str, words: list[str], library: Library) -> LaunchPlan:
    """Do what a hint says: add its options, or plan the model that it names."""
    command = shlex.split(hint)
    if command[:2] == ["slipstream", "plan"]:
        return plan_on(machine, command[2], [*words, *command[3:]], library)
    return plan_on(machine, target, [*words, *command], library)


def judge(plan: LaunchPlan) -> str:
    """Hold a plan against what every one must keep, and say what became of it."""
    assert {fault.code for fault in plan.warnings} <= ALLOWED
    if plan.refusals:
        assert {fault.code for fault in plan.refusals} <= {"memory", "cache", "target-quantization"}
        return "refused"
    assert not plan.memory.overflows
    assert plan.memory.sequences_that_fit != 0
    assert plan.settings.local_accelerators <= len(load_host(plan.machine or "").accelerators) * 8
    adjusted = any(note.startswith("adjusted: ") for note in plan.notes)
    return "adjusted" if adjusted else "as it is"


@pytest.mark.parametrize("goal", ["latency", "throughput", "agent"])
def test_every_cell_is_a_plan_that_fits_or_a_command_that_works(
    goal: str, library: Library
) -> None:
    counts: Counter[str] = Counter()
    words = ["--goal", goal]
    # The goals differ in what they want of a machine, not in how several GPUs share a model.
    machines = MACHINES if goal == "latency" else (*ALONE, "2x-gb10")
    for target in list_targets():
        for machine in machines:
            plan = plan_on(machine, target, words, library)
            outcome = judge(plan)
            counts[outcome] += 1
            for hint in plan.refusals[0].hint.split(", or ") if plan.refusals else ():
                assert follow(hint, machine, target, words, library).refusals == (), hint
                counts["commands"] += 1
    cells = f"{len(list_targets())} models on {len(machines)} machines"
    shown = f"{cells}: {dict(sorted(counts.items()))}\n"
    assert shown == read_snapshot(f"machines-people-own-{goal}.txt", shown)
