"""A machine hands out the requests of the drafter that serves now, and nothing of another run."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.errors import InvalidInputError
from slipstream.fleet.canary.ledgers import GroupLedger, find_run, read_group_ledger
from slipstream.serving.run import Process, RunFolder, read_process
from slipstream.serving.swaps import ServedDrafter
from tests.unit.serving.kept_runs import AT, keep
from tests.unit.steering.lines import write

BEGAN = AT.timestamp()


@pytest.fixture
def here() -> Process:
    process = read_process(os.getpid())
    assert process is not None
    return process


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "slipstream" / "runs"


def fill(folder: RunFolder, *ends: float) -> None:
    lines = [write(at=BEGAN + end, seconds=1.0, first_seconds=0.1) for end in ends]
    folder.ledger.write_bytes(b"".join(lines))


def list_ends(ledger: GroupLedger) -> list[float]:
    return [line.at - BEGAN for line in ledger.lines]


def test_the_newest_requests_after_a_moment_are_read(root: Path, here: Process) -> None:
    folder, _ = keep(root, supervisor=here)
    fill(folder, 10, 20, 30, 40)
    assert list_ends(read_group_ledger(root, 8000, BEGAN + 10, 9)) == [20, 30, 40]
    assert list_ends(read_group_ledger(root, 8000, 0.0, 2)) == [30, 40]
    assert list_ends(read_group_ledger(root, 8000, 0.0, 0)) == []


def test_requests_that_began_under_another_drafter_are_left_out(root: Path, here: Process) -> None:
    drafters = tuple(
        ServedDrafter(name=name, folder=Path(name), since=AT + timedelta(seconds=seconds))
        for name, seconds in (("old", 0), ("new", 20))
    )
    folder, _ = keep(root, supervisor=here, drafters=drafters)
    fill(folder, 10, 20.5, 21.5)
    ledger = read_group_ledger(root, 8000, 0.0, 9)
    assert list_ends(ledger) == [21.5]
    assert ledger.drafter == "new"


def test_a_run_is_found_by_its_port(root: Path, here: Process) -> None:
    keep(root, "one", supervisor=here)
    keep(root, "two", supervisor=here, url="https://10.0.0.1:8001")
    keep(root, "over", url="http://127.0.0.1:8002")
    assert find_run(root, 8001)[1].id == "two"
    with pytest.raises(InvalidInputError, match="no run is live at port 8002"):
        find_run(root, 8002)


def test_the_command_prints_it(
    root: Path, here: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = keep(root, supervisor=here)
    fill(folder, 10, 20)
    words = ["fleet", "ledger", "--port", "8000", "--after", repr(BEGAN + 10), "--json"]
    assert run(words, {}) == 0
    assert list_ends(GroupLedger.model_validate_json(capsys.readouterr().out)) == [20]
    assert run([*words[:4], "--after", "nan", "--json"], {}) == 2
    assert "--after" in json.loads(capsys.readouterr().err)["error"]["message"]
