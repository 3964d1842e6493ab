"""The simulation against a real engine: loads of `scripts/check-sizing` that were recorded once.

SmolLM2-135M-Instruct on one core per engine, vLLM 0.32.0, with the shipped drafter at k = 3 and
without, one engine and two behind vllm-router 0.1.16. The low and the high load are fitted.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    folder = tmp_path_factory.mktemp("check") / "recorded"
    shutil.copytree(RECORDED, folder)
    script = REPOSITORY / "scripts" / "check-sizing"
    outcome = subprocess.run(
        [sys.executable, str(script), str(folder), "--replay", "--seconds", "25"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads((folder / "figures.json").read_text()), outcome.stdout


def find_errors(rows: list[dict[str, Any]], figure: str, *, two: bool) -> list[float]:
    return [
        abs(row["off"])
        for row in rows
        if figure in row["figure"]
        and not row["fitted"]
        and row["load"].startswith("two replicas") == two
    ]


@pytest.mark.parametrize(
    ("figure", "two", "count", "within"),
    [
        ("p50", False, 12, 0.10),
        ("p95", False, 12, 0.10),
        ("tokens/s", False, 6, 0.05),
        ("p50", True, 8, 0.10),
        ("p95", True, 8, 0.20),
        ("tokens/s", True, 4, 0.05),
    ],
)
def test_loads_that_were_not_fitted_are_predicted(
    replayed: tuple[list[dict[str, Any]], str], figure: str, two: bool, count: int, within: float
) -> None:
    errors = find_errors(replayed[0], figure, two=two)
    assert len(errors) == count
    assert median(errors) < within


def test_plain_and_drafted_come_in_the_order_of_the_engine(
    replayed: tuple[list[dict[str, Any]], str],
) -> None:
    assert "25 right, 0 wrong, 10 within the noise" in replayed[1]
