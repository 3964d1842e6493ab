"""Thousands of command lines: what we read and write again is the same to vLLM's own parser."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from slipstream.engines.arguments import parse_arguments, render_arguments
from tests.engine.arms.launch import run_script
from tests.unit.engines.command_lines import command_lines
from tests.unit.engines.test_arguments import ODD

pytestmark = [pytest.mark.engine, pytest.mark.beside]

LINES = 2500
SCRIPTS = Path(__file__).parents[2] / "scripts"


def draw_lines() -> list[list[str]]:
    """Draw command lines from the table, the same ones every time."""
    drawn: list[list[str]] = []

    @settings(
        max_examples=LINES,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(command_lines())
    def draw(words: list[str]) -> None:
        drawn.append(words)

    draw()
    return drawn


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    lines = [*draw_lines(), *(words for words, _ in ODD.values())]
    pairs = [[words, render_arguments(parse_arguments(words))] for words in lines]
    job: dict[str, Any] = {"pairs": pairs, "script": str(SCRIPTS / "engine")}
    outcome: dict[str, Any] = run_script("parse_twice.py", job, tmp_path_factory.mktemp("lines"))
    sys.stdout.write(
        f"\n{len(pairs)} command lines, {len(outcome['rejected'])} that vLLM itself rejects\n"
    )
    return outcome | {"count": len(pairs)}


def test_what_is_rendered_means_the_same_to_vllm(judged: dict[str, Any]) -> None:
    assert judged["count"] > LINES * 0.9
    assert judged["different"] == []


def test_vllm_takes_what_we_take(judged: dict[str, Any]) -> None:
    assert judged["rejected"] == []


def test_the_shipped_table_is_this_engines(judged: dict[str, Any]) -> None:
    assert judged["same_table"]


def test_the_shipped_parsers_and_targets_are_this_engines() -> None:
    script = [sys.executable, str(SCRIPTS / "engine"), "tables", "parsers", "targets", "--check"]
    assert subprocess.run(script, check=False).returncode == 0
