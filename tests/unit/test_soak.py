"""`scripts/soak`: growth is told from noise, and an error from what was done on purpose."""

import random
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak"
it: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="soak"))
MIB = 1 << 20


def end(status: int | None, *, began: float = 10, ended: float = 11, **more: Any) -> Any:
    return it.Outcome("chat", began, ended, status, **more)


def test_a_slope_is_found_though_a_fifth_of_the_points_is_far_off() -> None:
    points = [(5.0 * x, 1000 + 0.25 * x) for x in range(10_000)]
    for at in random.Random(0).sample(range(10_000), 2_000):
        points[at] = (points[at][0], 1e9)
    assert it.find_slope(points) == pytest.approx(0.05, rel=0.01)
    assert it.find_slope([(1, 2), (1, 3)]) is None


def grow(per_hour: float, *, seconds: int = 3600, **more: Any) -> Iterator[dict[str, Any]]:
    """Make samples of an engine that first takes its memory, and then grows by a share an hour."""
    for at in range(0, seconds, 5):
        early = min(1.0, 0.5 + at / 600)
        memory = 800 * MIB * early * (1 + per_hour * at / 3600)
        processes = {
            "core": {"anonymous": memory, "fds": 40},
            "supervisor": {"anonymous": 60 * MIB, "fds": 20},
        }
        owners = {"supervisor": "process 7"}
        yield {
            **{"at": float(at), "ready": True, "generation": "engine 8", "owners": owners},
            "processes": processes,
            **more,
        }


@pytest.mark.parametrize(
    ("per_hour", "too_fast"), [(0.0, []), (0.005, []), (0.02, ["core anonymous"])]
)
def test_growth_counts_after_the_first_quarter(per_hour: float, too_fast: list[str]) -> None:
    growths = it.list_growths(grow(per_hour))
    assert {one.name for one in growths} == {
        *("core anonymous", "core fds", "supervisor anonymous", "supervisor fds")
    }
    assert all(one.is_judged for one in growths)
    assert [one.name for one in growths if one.is_too_fast] == too_fast
    (core,) = [one for one in growths if one.name == "core anonymous"]
    assert core.share_per_hour == pytest.approx(per_hour, rel=0.05, abs=1e-9)
    assert str(core).startswith("core anonymous of engine 8: ")


def test_engines_are_judged_one_by_one_and_only_while_they_are_ready() -> None:
    samples = [
        *grow(0.0),
        *grow(9.0, generation="engine 9", seconds=600),
        *grow(9.0, ready=False, generation="engine 10"),
    ]
    growths = {(one.name, one.generation): one for one in it.list_growths(samples)}
    assert not growths["core anonymous", "engine 8"].is_too_fast
    assert not growths["core anonymous", "engine 9"].is_judged
    assert ("core anonymous", "engine 10") not in growths
    assert str(growths["core anonymous", "engine 9"]).endswith("too short to judge")


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (end(200), "answered"),
        (end(200, fault="the stream ended with data: {}"), "unexplained"),
        (end(500), "unexplained"),
        (end(None, fault="ReadError: "), "unexplained"),
        (end(429, retry_after=True), "refused on purpose"),
        (end(429), "unexplained"),
        (end(503, retry_after=True), "refused on purpose"),
        (end(401), "unexplained"),
        (end(500, began=90, ended=101), "cut by a kill"),
        (end(None, began=119, ended=130), "cut by a kill"),
        (end(None, began=121, ended=130), "unexplained"),
        (end(None, began=300, ended=301), "cut by a kill"),
        (end(200, began=90, ended=101), "answered"),
    ],
)
def test_an_error_is_explained_by_a_refusal_or_a_kill_or_not_at_all(
    outcome: Any, name: str
) -> None:
    outages = [it.Outage(100, 120), it.Outage(299)]
    assert it.classify(outcome, outages) == name


@pytest.mark.parametrize(
    ("status", "known", "name"),
    [
        (400, False, "refused on purpose"),
        (200, False, "answered otherwise"),
        (404, False, "answered otherwise"),
        (429, False, "refused on purpose"),
        (500, False, "unexplained"),
        (500, True, "answered otherwise"),
        (None, False, "unexplained"),
    ],
)
def test_a_hostile_request_must_be_answered(status: int | None, known: bool, name: str) -> None:
    assert it.classify_hostile(end(status), (400,), known, []) == name
    cut = it.classify_hostile(end(None), (400,), known, [it.Outage(5)])
    assert cut == "cut by a kill"


def test_an_engine_is_left_alone_for_the_longer_part() -> None:
    assert it.plan_kills(3600, 2) == [180, 360]
    assert it.plan_kills(3600, 0) == []
    days = it.plan_kills(72 * 3600, 2)
    assert days[:3] == [3.6 * 3600, 7.2 * 3600, 13.2 * 3600]
    assert days[-1] <= 69 * 3600


def write_samples(folder: Path, per_hour: float, **more: Any) -> None:
    lines = [it.json.dumps({**sample, "rungs": [], **more}) for sample in grow(per_hour)]
    (folder / "samples.jsonl").write_text("\n".join(lines))


def test_what_is_missed_is_listed(tmp_path: Path) -> None:
    write_samples(tmp_path, 0.5, restarts=3, files={"folder": 1 << 30})
    counts = it.Counter({"unexplained": 2, "kills": 2, "answered": 9})
    missed = it.summarize(tmp_path, counts, left=1)["missed"]
    assert [line.split(":")[0] for line in missed] == [
        "it grows",
        "2 errors that nobody caused, see errors.jsonl",
        "1 restarts that nobody asked for",
        "the run's files took 1.0 GiB",
        "1 processes were left after the stop",
    ]


def test_nothing_is_missed_where_nothing_grows(tmp_path: Path) -> None:
    write_samples(tmp_path, 0.0, restarts=2, files={"folder": 1 << 20})
    summary = it.summarize(tmp_path, it.Counter({"kills": 2, "answered": 9}), left=0)
    assert summary["missed"] == []
    assert summary["judged"] == 4
    assert summary["hours"] == pytest.approx(1, rel=0.01)
