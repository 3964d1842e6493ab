"""vLLM takes a rank of a group as it is planned; scripts/prove-group runs whole groups."""

from pathlib import Path

import pytest

from slipstream.engines.vllm import HEADLESS_COMMAND
from slipstream.planning.group import Member
from slipstream.planning.spreading import spread_plan
from slipstream.serving.served_plan import follow_head
from tests.engine.arms.launch import run_script
from tests.unit.planning.bare_plans import bare_plan

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def test_a_rank_is_started_headless_by_vllms_serve_command(tmp_path: Path) -> None:
    members = [Member(name=f"m{rank}", address=f"10.0.0.{rank + 1}") for rank in range(2)]
    _, plan = spread_plan(bare_plan("--max-model-len", "512"), "a", members, secret_file="s")
    words = follow_head(plan).argv()[len(HEADLESS_COMMAND) :]
    assert run_script("start_rank.py", {"words": words}, tmp_path) == {
        "headless": True,
        "node_rank": 1,
        "nnodes": 2,
        "master_addr": "10.0.0.1",
        "master_port": 29501,
        "tensor_parallel_size": 2,
    }
