"""Every flag and variable that a plan can name is one that vLLM 0.32 understands."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipstream.engines.vllm import COMMAND
from slipstream.planning import LaunchPlan, make_options
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.recipes import load_recipes
from tests.engine.arms.launch import run_script
from tests.unit.planning.cells import plan_cell

pytestmark = [pytest.mark.engine, pytest.mark.beside]

# One of each generation and kind of memory: the others change figures, not flags.
MACHINES = ("cpu-server", "gb10", "gb10-linked-1", "h100", "b200", "l4", "mi300x", "rtx-3090")
OPTIONS = (
    make_options(),
    make_options(method="plain"),
    make_options(goal="throughput", users=48),
    make_options(
        goal="capacity",
        context=131072,
        draft_length=3,
        served_name="served",
        engine=(
            *("--max-num-batched-tokens", "16384", "--gpu-memory-utilization", "0.6"),
            *("--attention-backend", "flashinfer"),
        ),
    ),
    *(make_options(engine=("--kv-cache-dtype", variant)) for variant in (*TURBOQUANT_BITS, "fp8")),
)


class Evaluation(NamedTuple):
    """What vLLM's parser said of the arguments of every distinct plan."""

    plans: list[LaunchPlan]
    arguments: list[list[str]]
    faults: list[str | None]
    variables: list[str]
    unknown: list[str]


def arguments_of(plan: LaunchPlan) -> list[str]:
    return plan.argv()[len(COMMAND) :]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    plans = [
        plan_cell(recipe, machine, options)
        for recipe in load_recipes()
        for machine in MACHINES
        for options in OPTIONS
    ]
    distinct = {tuple(arguments_of(plan)) for plan in plans}
    arguments = [list(words) for words in sorted(distinct)]
    variables = sorted(
        {name for plan in plans for name in plan.environment if name.startswith("VLLM_")}
    )
    job: dict[str, Any] = {"commands": arguments, "variables": variables}
    outcome = run_script("parse_flags.py", job, tmp_path_factory.mktemp("flags"))
    return Evaluation(plans, arguments, outcome["faults"], variables, outcome["unknown"])


def test_no_plan_names_a_flag_or_value_that_vllm_rejects(judged: Evaluation) -> None:
    flags = {word for words in judged.arguments for word in words if word.startswith("--")}
    sys.stdout.write(
        f"\n{len(judged.plans)} plans, {len(judged.arguments)} distinct commands, "
        f"{len(flags)} flags: {' '.join(sorted(flags))}\n"
    )
    assert len(judged.plans) == len(load_recipes()) * len(MACHINES) * len(OPTIONS)
    rejected = {
        fault: " ".join(words)
        for words, fault in zip(judged.arguments, judged.faults, strict=True)
        if fault is not None
    }
    assert rejected == {}


def test_every_variable_of_a_plan_is_one_that_vllm_reads(judged: Evaluation) -> None:
    sys.stdout.write(f"\nvariables: {' '.join(judged.variables)}\n")
    assert "VLLM_USE_V2_MODEL_RUNNER" in judged.variables
    assert judged.unknown == []


def test_the_parser_would_have_noticed(tmp_path: Path) -> None:
    wrong = [
        ["--no-such-flag", "1"],
        ["--kv-cache-dtype", "turboquant_2bit"],
        ["--attention-backend", "FLASH_ATTENTION"],
        ["--load-format", "safetensor"],
        ["--speculative-config", '{"method": "dflash", "draft_tokens": 3}'],
        ["--speculative-config", '{"method": "dflash2"}'],
    ]
    job: dict[str, Any] = {"commands": wrong, "variables": ["VLLM_NO_SUCH_VARIABLE"]}
    outcome = run_script("parse_flags.py", job, tmp_path)
    for words, fault in zip(wrong, outcome["faults"], strict=True):
        sys.stdout.write(f"\n{' '.join(words)}: {str(fault).partition('(choose')[0][:90]}")
    assert [fault is not None for fault in outcome["faults"]] == [True] * len(wrong)
    assert outcome["unknown"] == ["VLLM_NO_SUCH_VARIABLE"]
