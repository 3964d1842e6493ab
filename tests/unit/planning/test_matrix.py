"""Every recipe on every machine, reviewed as one table; and a dozen plans word for word."""

import pytest

from slipstream.hardware import list_machines
from slipstream.planning import LaunchPlan, Wishes
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


def test_every_recipe_is_planned_or_refused_for_a_reason_on_its_own_machine() -> None:
    unexplained = [
        name
        for name, recipe in RECIPES.items()
        for machine in list_machines()
        for plan in [plan_cell(recipe, machine)]
        if any(not fault.message or not fault.hint for fault in (*plan.refusals, *plan.warnings))
    ]
    assert unexplained == []


@pytest.mark.parametrize(
    ("name", "machine", "wishes"),
    [
        ("gemma-4-31b-it-fp8-gb10", "gb10", Wishes()),
        ("gemma-4-31b-it-b300", "b300", Wishes()),
        ("gemma-4-26b-a4b-h100", "h100", Wishes()),
        ("gemma-4-26b-a4b-awq-rtx-5090", "rtx-5090", Wishes()),
        ("qwen3.5-27b-nvfp4-gb10", "gb10", Wishes()),
        ("qwen3.5-27b-nvfp4-gb10", "gb10", Wishes(goal="capacity", users=64, context=131072)),
        ("qwen3.5-35b-a3b-int4-gb10", "gb10", Wishes()),
        ("qwen3-coder-next-nvfp4-gb10", "jetson-thor", Wishes()),
        ("qwen3.8-27b-nvfp4-gb10", "b200", Wishes(goal="throughput")),
        ("glm-5.3-flash-nvfp4-2x-gb10", "gb10-linked-1", Wishes()),
        ("laguna-s-2.1-nvfp4-gb10", "gb10", Wishes()),
        ("qwen3-8b-vllm-ci", "rtx-3090", Wishes(users=4)),
        ("qwen3-4b-rtx-4090", "cpu-server", Wishes(speculation=False)),
        ("qwen3-8b-vllm-ci", "apple-laptop", Wishes()),
    ],
)
def test_a_plan_is_shown_as_reviewed(name: str, machine: str, wishes: Wishes) -> None:
    plan = plan_cell(RECIPES[name], machine, wishes)
    shown = render_plan(plan, explain=True) + "\n"
    wish = "" if wishes == Wishes() else f"-{wishes.goal}"
    assert shown == read_snapshot(f"plan-{name}-{machine}{wish}.txt", shown)
