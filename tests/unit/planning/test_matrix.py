"""Every recipe on every machine, reviewed as one table; and a dozen plans word for word."""

import pytest

from slipstream.hardware import list_machines
from slipstream.planning import LaunchPlan, PlanOptions, make_options
from slipstream.recipes import load_recipes
from slipstream.reporting.text.plan import render_plan
from tests.snapshots import read_snapshot
from tests.unit.planning.cells import plan_cell

RECIPES = {recipe.name: recipe for recipe in load_recipes()}


def summarize(plan: LaunchPlan) -> str:
    if plan.refusals:
        return "refused: " + ", ".join(fault.code for fault in plan.refusals)
    cautions = ", ".join(fault.code for fault in plan.warnings)
    return f"planned, with: {cautions}" if cautions else "planned"


def test_every_recipe_on_every_machine_is_as_reviewed() -> None:
    lines = []
    for name, recipe in RECIPES.items():
        lines.append(name)
        lines += [
            f"  {machine:<14} {summarize(plan_cell(recipe, machine))}"
            for machine in list_machines()
        ]
    shown = "\n".join(lines) + "\n"
    assert shown == read_snapshot("matrix.txt", shown)


@pytest.mark.parametrize(
    ("name", "machine", "options"),
    [
        ("gemma-4-31b-it-fp8-gb10", "gb10", make_options()),
        ("gemma-4-31b-it-b300", "b300", make_options()),
        ("gemma-4-26b-a4b-h100", "h100", make_options()),
        ("gemma-4-26b-a4b-awq-rtx-5090", "rtx-5090", make_options()),
        ("qwen3.5-27b-nvfp4-gb10", "gb10", make_options()),
        ("qwen3.5-27b-nvfp4-gb10", "gb10", make_options(goal="capacity", users=64, context=131072)),
        ("qwen3.5-35b-a3b-int4-gb10", "gb10", make_options()),
        ("qwen3-coder-next-nvfp4-gb10", "jetson-thor", make_options()),
        ("qwen3.8-27b-nvfp4-gb10", "b200", make_options(goal="throughput")),
        ("glm-5.3-flash-nvfp4-2x-gb10", "gb10-linked-1", make_options()),
        ("laguna-s-2.1-nvfp4-gb10", "gb10", make_options()),
        ("qwen3-8b-vllm-ci", "rtx-3090", make_options(users=4)),
        ("qwen3-4b-rtx-4090", "cpu-server", make_options(method="plain")),
        ("qwen3-8b-vllm-ci", "apple-laptop", make_options()),
    ],
)
def test_a_plan_is_shown_as_reviewed(name: str, machine: str, options: PlanOptions) -> None:
    plan = plan_cell(RECIPES[name], machine, options)
    shown = render_plan(plan, explain=True) + "\n"
    goal = "" if options == PlanOptions() else f"-{options.goal}"
    assert shown == read_snapshot(f"plan-{name}-{machine}{goal}.txt", shown)
