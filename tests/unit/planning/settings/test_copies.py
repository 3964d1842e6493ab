"""Drafts are copied where it was measured to pay, where the user asks, and never where it lies."""

from typing import Any

import pytest

from slipstream.planning.settings.copies import LONGEST, VARIABLE
from slipstream.planning.settings.patches import DFLASH_V2_COPY
from tests.unit.planning.pieces import TARGET
from tests.unit.planning.settings.test_patches import plan, with_draft

SPECULATION = "--speculative-config"


@pytest.mark.parametrize(
    ("machine", "inputs", "source"),
    [
        ("cpu-server", {}, "default"),
        ("cpu-server", {"copy_drafts": True}, "user"),
        ("cpu-server", {"copy_drafts": False}, None),
        ("cpu-server", {"method": "plain"}, None),
        ("cpu-server", {"drafter": with_draft(family="dspark")}, None),
        ("cpu-server", {"engine": (f"{SPECULATION}.draft_sample_method", "greedy")}, "default"),
        ("cpu-server", {"engine": (f"{SPECULATION}.draft_sample_method", "probabilistic")}, None),
        ("cpu-server", {"engine": (f"{SPECULATION}.rejection_sample_method", "block")}, None),
        ("cpu-server", {"engine": ("--scheduler-cls", "own.Scheduler")}, None),
        ("cpu-server", {"engine": ("--async-scheduling",)}, None),
        ("h100", {}, None),
        ("h100", {"copy_drafts": False}, None),
        ("h100", {"copy_drafts": True}, "user"),
        ("h100", {"copy_drafts": True, "engine": ("--scheduler-cls", "own.Scheduler")}, "user"),
    ],
)
def test_a_plan_copies_where_it_pays_or_was_asked_for(
    machine: str, inputs: dict[str, Any], source: str | None
) -> None:
    made = plan(machine, **inputs)
    found = made.find(VARIABLE)
    assert (found and found.source) == source
    assert found is None or found.value == str(LONGEST)
    assert (DFLASH_V2_COPY in made.patches) is (machine == "h100" and source == "user")
    assert "copy" not in {fault.code for fault in made.refusals}


@pytest.mark.parametrize(
    ("machine", "inputs"),
    [
        ("cpu-server", {"plain": True}),
        ("h100", {"drafter": with_draft(family="dspark")}),
        ("h100", {"drafter": with_draft(family="dflash2")}),
        ("h100", {"engine": (f"{SPECULATION}.draft_sample_method", "probabilistic")}),
        ("cpu-server", {"engine": ("--async-scheduling",)}),
    ],
)
def test_copies_that_cannot_be_made_are_refused(machine: str, inputs: dict[str, Any]) -> None:
    made = plan(machine, copy_drafts=True, **inputs)
    assert "copy" in {fault.code for fault in made.refusals}
    assert VARIABLE not in made.environment


def test_a_step_with_copies_has_more_logits() -> None:
    sizes = {
        copied: next(item.size_bytes for item in made.memory.items if item.name == "activations")
        for copied in (True, False)
        for made in [plan("cpu-server", copy_drafts=copied, users=4, engine=("--spec-tokens", "7"))]
    }
    more = 4 * (LONGEST - 7) * (TARGET.vocabulary_size or 0) * 4 * 2
    assert (sizes[True] or 0) - (sizes[False] or 0) == more > 0
