"""A run of another plan is compared with the one before it that had requests, and no other."""

from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.fleet.far_side.evaluation import (
    EvaluateRun,
    RunVerdict,
    evaluate_run,
    measure_speed,
)
from slipstream.fleet.record import find_folder
from slipstream.serving.run import Terms
from slipstream.steering.swap_test import SwapVerdict
from tests.unit.serving.kept_runs import AT, keep
from tests.unit.steering.lines import make, write

LATER = AT + timedelta(hours=3)


def lay(root: Path, name: str, hours: int, *, speed: float, count: int, fleet: str = "lab") -> None:
    """Lay a run down that began some hours ago, with requests of a speed in tokens per second."""
    terms = Terms(plan_file=Path("/home/me") / find_folder(fleet) / "plan.json")
    folder, _ = keep(root, name, terms=terms, began_at=AT + timedelta(hours=hours))
    took = {"tokens": 101, "first_seconds": 0.5, "seconds": 0.5 + 100 / speed}
    # Most of each prompt is in the cache, which is what a plan may be about.
    lines = [write(**took, cached_tokens=290) for _ in range(count)]
    lines += [write(**{**took, "seconds": 9}, key="supervisor")] * 20
    folder.ledger.write_bytes(b"".join(lines))


def evaluate(root: Path) -> RunVerdict:
    environment = {"XDG_STATE_HOME": str(root.parents[1])}
    return evaluate_run(EvaluateRun(fleet="lab"), environment, LATER)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "slipstream" / "runs"


@pytest.mark.parametrize(("speed", "verdict"), [(60.0, "as-good"), (30.0, "worse")])
def test_requests_of_both_runs_decide(speed: float, verdict: SwapVerdict, root: Path) -> None:
    lay(root, "older", 0, speed=10, count=200)
    lay(root, "before", 1, speed=50, count=200)
    lay(root, "vain", 1, speed=1, count=0)
    lay(root, "anothers", 2, speed=1, count=200, fleet="other")
    lay(root, "now", 2, speed=speed, count=200)
    found = evaluate(root)
    assert (found.run, found.verdict, found.seconds) == ("now", verdict, 3600.0)
    assert found.tokens_per_second == pytest.approx((50, speed))
    assert f"{speed:.1f} tokens per second, 50.0 before" in found.message


@pytest.mark.parametrize("count", [0, 5])
def test_without_enough_requests_nothing_is_decided(count: int, root: Path) -> None:
    lay(root, "before", 1, speed=50, count=count)
    lay(root, "now", 2, speed=50, count=200)
    assert (evaluate(root).verdict, evaluate(root).requests) == (None, 0)


def test_a_machine_without_a_run_of_the_fleet_says_so(root: Path) -> None:
    lay(root, "anothers", 2, speed=50, count=9, fleet="other")
    with pytest.raises(InvalidInputError, match="no run of the fleet lab"):
        evaluate(root)


@pytest.mark.parametrize("change", [{"tokens": 3}, {"first_seconds": None}, {"seconds": 0.41}])
def test_a_request_without_a_speed_is_left_out(change: dict[str, float | None]) -> None:
    assert measure_speed(make(**change)) is None
