"""A patch is in a plan exactly where the fault that it repairs would be met."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import DraftPart, Rope
from slipstream.planning import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.patches import (
    CPU_SAMPLING,
    CPU_TOP_K,
    DFLASH_NO_DRAFTS,
    DFLASH_SURVIVAL,
    DRAFTER_POSITIONS,
    GREEDY_VERIFICATION,
    TURBOQUANT_GRAPHS,
    VARIABLE,
)
from tests.unit.planning.pieces import DRAFTER, make_inputs

SHORT = {"context": 8192}
GRAPHS = "--compilation-config"
WHOLE = (GRAPHS, '{"cudagraph_mode": "FULL_DECODE_ONLY"}')
PACKED = ("--kv-cache-dtype", "turboquant_k8v4")


def plan(machine: str = "h100", **changes: Any) -> LaunchPlan:
    inputs = make_inputs(machine, **changes)
    return make_plan(inputs.host, inputs.target, inputs.drafter, inputs.recipe, inputs.options)


def with_draft(**changes: Any) -> dict[str, Any]:
    assert isinstance(DRAFTER.draft, DraftPart)
    return SHORT | {"draft": DRAFTER.draft.model_copy(update=changes)}


LONG = {"drafter": SHORT, "context": 16384}
SCALED = SHORT | {"rope": Rope(scaling="yarn", factor=4)}
STRETCHED = ("--hf-overrides", '{"max_position_embeddings": 131072}')
MTP = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
ON_CPU = (
    *(CPU_SAMPLING, CPU_TOP_K, GREEDY_VERIFICATION, DFLASH_NO_DRAFTS),
    DFLASH_SURVIVAL,
)


@pytest.mark.parametrize(
    ("machine", "inputs", "patches"),
    [
        ("h100", {}, ()),
        ("h100", {"drafter": SHORT}, ()),
        ("h100", LONG, (DRAFTER_POSITIONS,)),
        ("h100", LONG | {"drafter": with_draft(family="dflash2")}, (DRAFTER_POSITIONS,)),
        ("h100", LONG | {"drafter": with_draft(family="dspark")}, (DRAFTER_POSITIONS,)),
        ("h100", LONG | {"context": 8192}, ()),
        ("h100", LONG | {"context": 8193}, (DRAFTER_POSITIONS,)),
        ("h100", LONG | {"drafter": {"context": None}}, ()),
        ("h100", {"context": 131072, "engine": STRETCHED}, (DRAFTER_POSITIONS,)),
        ("h100", {"context": 40960, "engine": STRETCHED}, ()),
        ("h100", LONG | {"engine": (*PACKED, *WHOLE), "method": "plain"}, ()),
        ("h100", LONG | {"engine": (*PACKED, *WHOLE), "plain": True}, ()),
        ("h100", {"engine": (*PACKED, *WHOLE)}, (TURBOQUANT_GRAPHS,)),
        ("h100", {"engine": (*PACKED, GRAPHS, '{"mode": 3}')}, (TURBOQUANT_GRAPHS,)),
        ("h100", {"engine": (*PACKED, f"{GRAPHS}.cudagraph_mode", "FULL")}, (TURBOQUANT_GRAPHS,)),
        ("h100", {"engine": PACKED}, ()),
        ("h100", {"engine": (*PACKED, GRAPHS, '{"cudagraph_mode": "NONE"}')}, ()),
        ("h100", {"engine": (*PACKED, f"{GRAPHS}.cudagraph_mode", "PIECEWISE")}, ()),
        ("h100", {"engine": (*PACKED, *WHOLE, "--enforce-eager")}, ()),
        ("h100", {"engine": ("--kv-cache-dtype", "fp8", *WHOLE)}, ()),
        ("h100", {"plain": True, "engine": (*PACKED, *WHOLE, *MTP)}, (TURBOQUANT_GRAPHS,)),
        (
            "h100",
            LONG | {"engine": (*PACKED, *WHOLE)},
            (DRAFTER_POSITIONS, TURBOQUANT_GRAPHS),
        ),
        ("cpu-server", {}, ON_CPU),
        ("cpu-server", {"engine": (*PACKED, *WHOLE)}, ON_CPU),
        ("cpu-server", {"method": "plain"}, ()),
    ],
)
def test_a_plan_has_the_patches_whose_faults_it_would_meet(
    machine: str, inputs: dict[str, Any], patches: tuple[str, ...]
) -> None:
    made = plan(machine, **inputs)
    assert made.patches == patches
    variable = made.find(VARIABLE)
    assert (variable and variable.value) == (",".join(patches) or None)
    issues = {DRAFTER_POSITIONS: "vllm#57941", TURBOQUANT_GRAPHS: "vllm#53180"}
    told = variable.because if variable else ""
    assert all(issues.get(patch, "") in told for patch in patches)


@pytest.mark.parametrize(
    ("machine", "inputs", "verdict"),
    [
        ("h100", LONG, "warn"),
        ("h100", {"context": 131072, "engine": STRETCHED}, "warn"),
        ("cpu-server", LONG, "refuse"),
        ("h100", LONG | {"drafter": SCALED}, "refuse"),
        ("h100", LONG | {"drafter": SHORT | {"rope": None}}, "refuse"),
        ("h100", LONG | {"target": SHORT}, "refuse"),
        ("h100", LONG | {"target": {"context": None}}, "refuse"),
    ],
)
def test_a_context_beyond_the_drafters_is_refused_where_no_patch_adds_positions(
    machine: str, inputs: dict[str, Any], verdict: str
) -> None:
    made = plan(machine, **inputs)
    faults = (*made.refusals, *made.warnings)
    (fault,) = [one for one in faults if one.code == "drafter-context"]
    assert fault.verdict == verdict
    assert (DRAFTER_POSITIONS in made.patches) is (verdict == "warn")
    assert fault.hint.startswith("--context ")


def test_other_faults_of_a_patched_pair_stay() -> None:
    made = plan(drafter=SHORT | {"hidden_size": 5376}, context=16384)
    assert [fault.code for fault in made.refusals] == ["hidden-size"]
