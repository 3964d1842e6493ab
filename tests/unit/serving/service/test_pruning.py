"""Old runs go, and nothing else does."""

from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.serving.run import Process, Terms, expected_phases, list_runs
from slipstream.serving.service import pruning
from slipstream.serving.service.pruning import prune_runs
from tests.unit.serving.kept_runs import AT, ENGINE, PLAN, SUPERVISOR, FakeProc, keep

DAY = timedelta(days=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_the_newest_twenty_stay_and_predict_the_next_start(root: Path, proc: FakeProc) -> None:
    for number in range(25):
        began = AT + timedelta(hours=number)
        keep(root, f"run-{number}", began_at=began, phase_seconds={"weights": number})
    pruned = prune_runs(root, now=AT + DAY, proc=proc.path)
    assert set(pruned.names) == {f"run-{number}" for number in range(5)}
    assert names(root) == {f"run-{number}" for number in range(5, 25)}
    assert str(pruned).startswith("5 old runs of ")
    assert expected_phases(root, PLAN) == {"weights": 14.5}


def test_runs_of_a_month_ago_go_but_never_the_last_one(root: Path, proc: FakeProc) -> None:
    for number in range(3):
        keep(root, f"run-{number}", began_at=AT + timedelta(hours=number))
    assert prune_runs(root, now=AT + 30 * DAY, proc=proc.path).names == ()
    pruned = prune_runs(root, now=AT + 3000 * DAY, proc=proc.path)
    assert set(pruned.names) == {"run-0", "run-1"}
    assert names(root) == {"run-2"}


def test_runs_stay_within_a_size(
    root: Path, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "KEPT_BYTES", 1 << 20)
    for number in range(4):
        folder, _ = keep(root, f"run-{number}", began_at=AT + timedelta(hours=number))
        folder.engine_log.write_bytes(bytes(400_000))
    pruned = prune_runs(root, now=AT + DAY, proc=proc.path)
    assert set(pruned.names) == {"run-0", "run-1"}
    assert pruned.size_bytes > 800_000


def test_what_lives_or_is_needed_stays(root: Path, proc: FakeProc) -> None:
    proc.add(SUPERVISOR)
    gone = Process(pid=5000, start_ticks=1)
    keep(root, "live", began_at=AT)
    keep(root, "orphaned", began_at=AT, supervisor=gone, engine=Process(pid=4730, start_ticks=1000))
    proc.add(Process(pid=4731, start_ticks=1001), session=4730)
    key_holder, _ = keep(root, "holder", began_at=AT, supervisor=gone, engine=None)
    terms = Terms(keys_file=key_holder.path / "keys.json")
    keep(root, "holds-none", began_at=AT + 2 * DAY, supervisor=gone, engine=None, terms=terms)
    keep(root, "asked-for", began_at=AT, supervisor=gone, engine=None)
    keep(root, "over", began_at=AT, supervisor=gone, engine=ENGINE)
    spared = root / "asked-for"
    assert prune_runs(root, now=AT + 99 * DAY, spared=spared, proc=proc.path).names == ("over",)


def test_nothing_outside_the_root_is_touched(root: Path, proc: FakeProc, tmp_path: Path) -> None:
    outside, _ = keep(tmp_path / "elsewhere", "outside", began_at=AT)
    root.mkdir()
    (root / "link").symlink_to(outside.path)
    inside, _ = keep(root, "inside", began_at=AT)
    (inside.path / "accounting").symlink_to(outside.path)
    (root / "no-run").mkdir()
    (root / "no-run" / "notes").touch()
    (root / "file").touch()
    keep(root, "newest", began_at=AT + DAY)
    pruned = prune_runs(root, now=AT + 99 * DAY, proc=proc.path)
    assert pruned.names == ("inside",)
    assert names(root) == {"link", "no-run", "file", "newest"}
    assert outside.record.exists()
    assert len(list_runs(root)) == 2
    assert (root / "no-run" / "notes").exists()
