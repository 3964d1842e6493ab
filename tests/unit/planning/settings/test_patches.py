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
    DRAFTER_POSITIONS,
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


def find_verdicts(made: LaunchPlan) -> list[str]:
    faults = (*made.refusals, *made.warnings)
    return [fault.verdict for fault in faults if fault.code == "drafter-context"]


def test_an_ordinary_plan_has_no_patch() -> None:
    made = plan()
    assert made.patches == ()
    assert made.find(VARIABLE) is None
    assert plan(drafter=SHORT).patches == ()


@pytest.mark.parametrize("family", ["dflash", "dflash2", "dspark"])
def test_a_context_beyond_the_drafters_is_patched_and_warned_of(family: str) -> None:
    made = plan(drafter=with_draft(family=family), context=16384)
    assert made.patches == (DRAFTER_POSITIONS,)
    assert find_verdicts(made) == ["warn"]
    (warning,) = [fault for fault in made.warnings if fault.code == "drafter-context"]
    assert DRAFTER_POSITIONS in warning.message
    assert warning.hint == "--context 8192"
    variable = made.find(VARIABLE)
    assert variable is not None
    assert (variable.value, variable.source) == (DRAFTER_POSITIONS, "checkpoint")
    assert "vllm#57941" in variable.because


def test_other_faults_of_a_patched_pair_stay() -> None:
    made = plan(drafter=SHORT | {"hidden_size": 5376}, context=16384)
    assert [fault.code for fault in made.refusals] == ["hidden-size"]


def test_a_context_that_the_drafter_just_knows_needs_no_patch() -> None:
    assert plan(drafter=SHORT, context=8192).patches == ()
    assert plan(drafter=SHORT, context=8193).patches == (DRAFTER_POSITIONS,)


@pytest.mark.parametrize(
    ("machine", "changes"),
    [
        pytest.param("cpu-server", {"drafter": SHORT}, id="V1 stops drafting"),
        pytest.param(
            "h100", {"drafter": SHORT | {"rope": Rope(scaling="yarn", factor=4)}}, id="scaled"
        ),
        pytest.param("h100", {"drafter": SHORT | {"rope": None}}, id="perhaps scaled"),
        pytest.param("h100", {"drafter": SHORT, "target": SHORT}, id="the target is short too"),
        pytest.param(
            "h100", {"drafter": SHORT, "target": {"context": None}}, id="the target may be short"
        ),
    ],
)
def test_what_the_patch_cannot_repair_stays_refused(machine: str, changes: Any) -> None:
    made = plan(machine, context=16384, **changes)
    assert DRAFTER_POSITIONS not in made.patches
    assert find_verdicts(made) == ["refuse"]


def test_a_stretched_target_is_patched_as_far_as_it_is_stretched() -> None:
    stretch = ("--hf-overrides", '{"max_position_embeddings": 131072}')
    made = plan(context=131072, engine=stretch)
    assert made.patches == (DRAFTER_POSITIONS,)
    assert find_verdicts(made) == ["warn"]
    assert plan(context=40960, engine=stretch).patches == ()


@pytest.mark.parametrize("changes", [{"method": "plain"}, {"plain": True}])
def test_without_drafts_there_is_nothing_to_patch(changes: Any) -> None:
    made = plan(drafter=SHORT, context=16384, engine=(*PACKED, *WHOLE), **changes)
    assert made.patches == ()


def test_an_unknown_context_of_the_drafter_is_no_reason() -> None:
    assert plan(drafter={"context": None}, context=40960).patches == ()


@pytest.mark.parametrize(
    "words",
    [
        WHOLE,
        (GRAPHS, '{"mode": 3}'),
        (f"{GRAPHS}.cudagraph_mode", "FULL"),
        (f"{GRAPHS}.cudagraph_capture_sizes", "[1, 2]"),
    ],
)
def test_whole_graphs_that_the_user_chose_are_patched_under_turboquant(words: Any) -> None:
    made = plan(engine=("--kv-cache-dtype", "turboquant_3bit_nc", *words))
    assert made.patches == (TURBOQUANT_GRAPHS,)
    variable = made.find(VARIABLE)
    assert variable is not None
    assert (variable.value, variable.source) == (TURBOQUANT_GRAPHS, "user")
    assert "vllm#53180" in variable.because


@pytest.mark.parametrize(
    "words",
    [
        (),
        (GRAPHS, '{"cudagraph_mode": "NONE"}'),
        (f"{GRAPHS}.cudagraph_mode", "PIECEWISE"),
        (*WHOLE, "--enforce-eager"),
    ],
)
def test_split_graphs_and_no_graphs_need_no_patch(words: Any) -> None:
    assert plan(engine=(*PACKED, *words)).patches == ()


def test_whole_graphs_over_another_cache_or_on_a_cpu_need_no_patch() -> None:
    assert plan(engine=("--kv-cache-dtype", "fp8", *WHOLE)).patches == ()
    on_cpu = plan("cpu-server", engine=(*PACKED, *WHOLE))
    assert TURBOQUANT_GRAPHS not in on_cpu.patches


def test_speculation_of_the_users_own_counts_too() -> None:
    own = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
    made = plan(plain=True, engine=(*PACKED, *WHOLE, *own))
    assert made.patches == (TURBOQUANT_GRAPHS,)


def test_two_patches_share_the_variable_and_both_reasons_are_told() -> None:
    made = plan(drafter=SHORT, context=16384, engine=(*PACKED, *WHOLE))
    assert made.patches == (DRAFTER_POSITIONS, TURBOQUANT_GRAPHS)
    told = made.find(VARIABLE)
    assert told is not None
    assert told.value == "drafter-positions,turboquant-graphs"
    assert "#57941" in told.because
    assert "#53180" in told.because


def test_drafts_on_a_cpu_are_sampled_with_a_patch_and_plain_decoding_without() -> None:
    assert plan("cpu-server").patches == (CPU_SAMPLING, CPU_TOP_K, DFLASH_NO_DRAFTS)
    assert plan("cpu-server", method="plain").patches == ()
