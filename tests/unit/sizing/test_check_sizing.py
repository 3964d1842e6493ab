"""The simulation against a real engine: loads of `experiments/check-sizing`, recorded once.

SmolLM2-135M-Instruct on one core per engine, vLLM 0.32.0, with the shipped drafter at k = 3 and
without, one engine and two behind vllm-router 0.1.16. The low and the high load are fitted.
"""

from pathlib import Path
from statistics import median

import pytest

from tests.unit.sizing.replay import Row, compare, rank_arms

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    arms = ("drafted", "plain")
    return [row for arm in arms for row in compare(RECORDED, arm, users=16)]


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
    rows: list[Row], figure: str, two: bool, count: int, within: float
) -> None:
    errors = [
        abs(row.off)
        for row in rows
        if figure in row.figure and not row.fitted and row.load.startswith("two replicas") == two
    ]
    assert len(errors) == count
    assert median(errors) < within


def test_plain_and_drafted_come_in_the_order_of_the_engine(rows: list[Row]) -> None:
    assert rank_arms(rows) == (25, 0, 10)
