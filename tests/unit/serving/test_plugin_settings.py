"""A served DFlash drafter can be replaced, where the gate is there to do it."""

from pathlib import Path

import pytest

from slipstream.serving.plugin_settings import BACKEND, SWAPS_VARIABLE, TRANSFER, takes_swaps
from slipstream.serving.run import RunFolder
from slipstream.serving.served_plan import leave_without_gate, put_behind_gate
from slipstream.vllm_plugin import patches
from tests.unit.planning.bare_plans import bare_plan

FOLDER = RunFolder(Path("/runs/one"))
LOCAL = ("--host", "127.0.0.1")


def test_a_dflash_drafter_behind_the_gate_can_be_replaced() -> None:
    plan = put_behind_gate(bare_plan(*LOCAL, drafter="d"), FOLDER)
    argv = plan.argv()
    assert argv[argv.index(TRANSFER) + 1] == f'{{"backend": "{BACKEND}"}}'
    assert plan.environment[SWAPS_VARIABLE].value == "1"
    assert takes_swaps(plan)
    assert put_behind_gate(plan, FOLDER) == plan


def test_the_plugin_knows_the_same_names() -> None:
    assert (patches.BACKEND, patches.SWAPS) == (BACKEND, SWAPS_VARIABLE)


def test_without_the_gate_the_engine_keeps_its_drafter() -> None:
    plan = leave_without_gate(put_behind_gate(bare_plan(*LOCAL, drafter="d"), FOLDER))
    assert TRANSFER not in plan.argv()
    assert SWAPS_VARIABLE not in plan.environment


@pytest.mark.parametrize(
    "words",
    [
        ("--speculative-config", '{"method": "eagle3", "model": "e"}'),
        ("--speculative-config", '{"method": "ngram"}'),
        ("--speculative-config", '{"method": "dflash", "model": "d"}', "--load-format", "dummy"),
        (
            *("--speculative-config", '{"method": "dflash", "model": "d"}'),
            *("--moe-backend", "flashinfer_moe_ep_cutedsl"),
        ),
        (
            *("--speculative-config", '{"method": "dflash", "model": "d"}'),
            *(TRANSFER, '{"backend": "nccl"}'),
        ),
        (),
    ],
)
def test_another_engine_keeps_its_drafter(words: tuple[str, ...]) -> None:
    plan = put_behind_gate(bare_plan(*LOCAL, *words), FOLDER)
    assert not takes_swaps(plan)
    assert BACKEND not in " ".join(plan.argv())


def test_a_plan_that_came_down_to_no_drafts_takes_no_order() -> None:
    plan = put_behind_gate(bare_plan(*LOCAL, drafter="d"), FOLDER).without_drafts()
    assert not takes_swaps(plan)
