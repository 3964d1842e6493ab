"""`scripts/soak`: growth is told from noise, and an error from what was done on purpose."""

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
    ("outcome", "known", "name"),
    [
        (end(400), False, "refused on purpose"),
        (end(200), False, "answered otherwise"),
        (end(404), False, "answered otherwise"),
        (end(429, retry_after=True), False, "refused on purpose"),
        # A schema that a busy machine had no time to measure.
        (end(503, retry_after=True), False, "refused on purpose"),
        (end(503), False, "unexplained"),
        (end(500), False, "unexplained"),
        (end(500), True, "answered otherwise"),
        (end(None), False, "unexplained"),
    ],
)
def test_a_hostile_request_must_be_answered(outcome: Any, known: bool, name: str) -> None:
    assert it.classify_hostile(outcome, (400,), known, []) == name
    cut = it.classify_hostile(end(None), (400,), known, [it.Outage(5)])
    assert cut == "cut by a kill"


def summarize(folder: Path, per_hour: float, counts: dict[str, int], **more: Any) -> Any:
    lines = [it.json.dumps({**sample, "rungs": [], **more}) for sample in grow(per_hour)]
    (folder / "samples.jsonl").write_text("\n".join(lines))
    return it.summarize(folder, it.Counter(counts), left=int(per_hour > 0))


def test_what_is_missed_is_listed_and_nothing_else(tmp_path: Path) -> None:
    counts = {"unexplained": 2, "kills": 2, "answered": 9}
    missed = summarize(tmp_path, 0.5, counts, restarts=3, files={"folder": 1 << 30})["missed"]
    assert [line.split()[0] for line in missed] == ["it", "2", "1", "the", "1"]
    counts = {"kills": 2, "answered": 9}
    summary = summarize(tmp_path, 0.0, counts, restarts=2, files={"folder": 1 << 20})
    assert (summary["missed"], summary["judged"]) == ([], 4)
    assert summary["hours"] == pytest.approx(1, rel=0.01)
