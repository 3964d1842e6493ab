"""What is named instead of a plan that does not fit: what changes least, and a machine."""

from typing import Any

import pytest

from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, make_options
from slipstream.planning.drafters.library import Library
from slipstream.planning.drafters.resolution import plan_target
from slipstream.recipes import load_drafters, load_models, load_recipes_for
from tests.unit.planning.cells import read_nothing

LIBRARY = Library(read_nothing, load_recipes_for, load_drafters, load_models).remember()
BIG, CODER = "Qwen/Qwen3-32B", "Qwen/Qwen3-Coder-Next"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
LONG = {"context": 40960}
RAW = {"engine": ("--max-model-len", "40960")}


def plan(target: str, machine: str, **options: Any) -> LaunchPlan:
    return plan_target(load_host(machine), target, make_options(**options), LIBRARY)


@pytest.mark.parametrize(
    ("target", "machine", "options", "hint"),
    [
        ("Qwen/Qwen3-8B", "rtx-3090", LONG, "--context 10240, or --host rtx-3090x2"),
        ("Qwen/Qwen3-8B", "rtx-3090", RAW, "-- --max-model-len 10240, or --host rtx-3090x2"),
        (BIG, "rtx-3090", {}, "--host rtx-3090x4"),
        (BIG, "rtx-5090x2", {}, "--host rtx-5090x4, or slipstream plan Qwen/Qwen3-32B-FP8"),
        (NEXT, "gb10", {}, "-- --quantization fp8_per_tensor, or --host 2x-gb10"),
        ("deepseek-ai/DeepSeek-V3", "h100x8", {}, "--host b200x4"),
        (LLAMA, "h100x8", {"engine": ("-tp", "1")}, "-- --tensor-parallel-size 2, or --host b200"),
        (CODER, "gb10", {}, "--host 2x-gb10, or slipstream plan Qwen/Qwen3-Coder-Next-FP8"),
        (CODER, "h100x2", {"engine": ("-tp", "1")}, "--host b200"),
        (BIG, "cpu-server", {}, "--host h100, or slipstream demo"),
    ],
)
def test_the_least_change_and_a_machine_are_named(
    target: str, machine: str, options: dict[str, Any], hint: str
) -> None:
    assert [fault.hint for fault in plan(target, machine, **options).refusals] == [hint]


def test_a_plan_that_fits_or_is_wrong_in_itself_keeps_its_hints() -> None:
    assert plan("Qwen/Qwen3-8B", "h100").refusals == ()
    (fault,) = plan("Qwen/Qwen3-8B", "h100", engine=("-tp", "3")).refusals[:1]
    assert fault.code == "accelerators"
    assert "--host" not in fault.hint
