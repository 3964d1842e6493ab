"""Steering on every vLLM that we know: its real schedulers, step by step with a made-up model.

There is no CPU build of 0.33, so its Python files are put before those of the installed one.
"""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.engines.vllm_tables import VERSIONS
from slipstream.proving_ground import SHIPPED_DRAFTER
from tests.engine.arms.launch import run_engine_script

pytestmark = [pytest.mark.engine, pytest.mark.beside]

ENGINE: Any = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "engine"))
)
GROWING = [[3 * at, 30, 40] for at in range(8)]
MIXED = [[0, 20, 90], [0, 20, 30], [2, 40, 60], [30, 60, 10], [31, 20, 50], [60, 20, 8]]
TOGETHER = [[0, 24, 32]] * 8
LONG = [[0, 300, 30], [1, 20, 60], [5, 400, 30], [6, 250, 20]]
TIGHT = {"blocks": 24, "requests": [[0, 60, 120]] * 4, "seats": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "alone": {"requests": [[0, 20, 80]]},
    "growing": {"requests": GROWING},
    "mixed": {"requests": MIXED},
    "together": {"requests": TOGETHER},
    "one token each": {"requests": [[at, 20, 1] for at in range(6)]},
    "chunked prompts": {"requests": LONG, "budget": 96},
    "preempted": TIGHT,
    "client leaves": {"requests": GROWING, "aborts": [[12, "r1"], [20, "r4"]]},
    "client leaves the queue": {"requests": TOGETHER, "seats": 2, "aborts": [[4, "r7"]]},
    "shared beginning": {"requests": [[9 * at, 30, 20] for at in range(6)], "shared": True},
    "always right": {"requests": GROWING, "rate": 1.0},
    "never right": {"requests": GROWING, "rate": 0.0},
}
# As a plan with --steer has them: 0.32 would pay for the drafter at 0.
GRAPHS = {"on_gpu": True, "lengths": [7, 3, 1], "asynchronous": True}
DOWN_TO_NONE = GRAPHS | {"lengths": [7, 3, 1, 0]}
EAGER = {"on_gpu": True, "asynchronous": True}
REPEATED = {"requests": [[40 * at, 6, 20] for at in range(4)], "shared": True}
SCENARIOS: dict[str, dict[str, Any]] = {
    **SHAPES,
    **{f"{name}, asynchronous": {**one, "asynchronous": True} for name, one in SHAPES.items()},
    **{f"{name}, graphs": SHAPES[name] | GRAPHS for name in ("growing", "mixed", "preempted")},
    **{f"{name}, down to none": SHAPES[name] | DOWN_TO_NONE for name in ("growing", "never right")},
    "one length, graphs": SHAPES["growing"] | GRAPHS | {"lengths": [7]},
    **{f"{name}, eager": SHAPES[name] | EAGER for name in ("growing", "mixed", "preempted")},
    "conversation": REPEATED,
    "conversation of a hybrid": REPEATED | {"hybrid": True},
    "copies": {"requests": [[3 * at, 90, 60] for at in range(4)], "period": 20, "copied": 31},
    "copies, preempted": TIGHT | {"period": 20, "copied": 31},
}


@pytest.fixture(scope="module", params=VERSIONS)
def driven(
    request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return what every scenario counted with one version."""
    installed = request.param == ENGINE.find_version()
    sources = "" if installed else str(ENGINE.fetch_sources(request.param))
    job = {
        "engine": {
            "model": str(target),
            "max_model_len": 1024,
            "kv_cache_memory_bytes": 1 << 28,
        },
        "speculation": {
            "method": "dflash",
            "model": str(SHIPPED_DRAFTER),
            "num_speculative_tokens": 7,
        },
        "scenarios": [{"name": name, "seats": 8} | one for name, one in SCENARIOS.items()],
    }
    given = {"VLLM_TARGET_DEVICE": "cpu"}
    if sources:
        given["PYTHONPATH"] = os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")])
    found = run_engine_script("drive_scheduler.py", job, tmp_path_factory.mktemp("driven"), given)
    assert found["version"] == request.param
    counted: dict[str, Any] = found["scenarios"]
    return counted


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_ledger_counts_what_vllm_counts(driven: dict[str, Any], name: str) -> None:
    found, scenario = driven[name], SCENARIOS[name]
    assert found["steered"]
    assert found["ended"]
    assert found["ledger"] == found["stats"]
    assert found["lines"] == len(scenario["requests"])
    if "aborts" not in scenario:
        assert found["stats"]["tokens"] == sum(tokens for *_, tokens in scenario["requests"])
        assert found["endings"] == ["length"]
    else:
        assert found["endings"] == ["aborted", "length"]


def test_the_scenarios_are_what_they_are_called(driven: dict[str, Any]) -> None:
    assert driven["preempted"]["preempted"]
    assert driven["preempted, asynchronous"]["preempted"]
    assert driven["copies"]["copied"] > driven["copies"]["stats"]["tokens"] / 2
    assert driven["shared beginning"]["cached"] > 0
    assert driven["always right"]["stats"]["accepted"] == driven["always right"]["stats"]["drafted"]
    assert driven["never right"]["stats"]["accepted"] == 0
    assert driven["growing, asynchronous"]["class"] == "AsyncScheduler"


def test_the_length_is_chosen_by_batch_also_among_those_with_graphs(driven: dict[str, Any]) -> None:
    def list_chosen(name: str) -> set[int]:
        return {length for some in driven[name]["lengths"].values() for length in some}

    for name in ("growing, graphs", "mixed, graphs", "preempted, graphs"):
        assert list_chosen(name) <= {1, 3, 7}
        assert len(list_chosen(name)) > 1
    assert list_chosen("one length, graphs") == {7}
    assert {0} < list_chosen("never right, down to none") <= {0, 1, 3, 7}
    for name in ("mixed", "mixed, eager"):
        assert len(list_chosen(name)) > 1
    assert driven["growing, eager"]["lengths"]["1"][-1] == 7, "it begins with drafts"


def test_a_conversation_finds_its_beginning_in_the_cache(
    driven: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Three blocks are repeated three times; 0.32 drops the last, and all of a hybrid's."""
    found = [driven[name]["cached"] for name in ("conversation", "conversation of a hybrid")]
    assert found == ([96, 0] if "0.32" in request.node.name else [144, 144])
