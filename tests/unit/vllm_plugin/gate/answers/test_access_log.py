"""Lines are whole, the files bounded, and neither a slow nor a full disk is anybody's wait."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.vllm_plugin.gate.answers import records
from slipstream.vllm_plugin.gate.answers.records import AccessLog
from tests.unit.vllm_plugin.gate.pieces import wait_until

WRITER = """
from pathlib import Path
import sys
from slipstream.vllm_plugin.gate.answers.records import AccessLog
lost = []
log = AccessLog(Path(sys.argv[1]), limit_bytes=5000, older=99, drop=lost.append)
for number in range(300):
    log.add({"writer": sys.argv[2], "number": number, "filler": "x" * 50})
log.close()
assert not lost
"""


def make_log(path: Path, lost: list[int], *, limit_bytes: int = 2**20, older: int = 3) -> AccessLog:
    return AccessLog(path, limit_bytes=limit_bytes, older=older, drop=lost.append)


def read_numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def test_lines_are_private_and_in_order(tmp_path: Path) -> None:
    lost: list[int] = []
    log = make_log(tmp_path / "access.jsonl", lost)
    for number in range(1000):
        log.add({"number": number})
    log.close()
    assert read_numbers(tmp_path / "access.jsonl") == list(range(1000))
    assert (tmp_path / "access.jsonl").stat().st_mode & 0o777 == 0o600
    assert lost == []


def test_a_full_file_is_moved_aside_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LINES_AT_ONCE", 1)
    path = tmp_path / "access.jsonl"
    log = make_log(path, [], limit_bytes=len(b'{"number":100}\n') * 10, older=2)
    for number in range(100, 145):
        log.add({"number": number})
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *("access-1.jsonl", "access-2.jsonl", "access.jsonl")
    ]
    assert read_numbers(path) == list(range(140, 145))
    assert read_numbers(tmp_path / "access-1.jsonl") == list(range(130, 140))
    assert read_numbers(tmp_path / "access-2.jsonl") == list(range(120, 130))


def test_without_older_files_a_full_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LINES_AT_ONCE", 1)
    log = make_log(tmp_path / "access.jsonl", [], limit_bytes=150, older=0)
    for number in range(100, 145):
        log.add({"number": number})
    log.close()
    assert read_numbers(tmp_path / "access.jsonl") == list(range(140, 145))


def test_several_processes_share_the_files_and_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "access.jsonl")]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    files = list(tmp_path.glob("access*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(lines) == 900
    assert len({(line["writer"], line["number"]) for line in lines}) == 900
    assert len(files) > 5


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    path.write_bytes(b'{"number":0}\n{"numb')
    log = make_log(path, [])
    log.add({"number": 1})
    log.close()
    assert path.read_text().splitlines() == ['{"number":0}', '{"numb', '{"number":1}']


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[int] = []
    log = make_log(Path("/dev/full"), lost)
    for number in range(10):
        log.add({"number": number})
    log.close()
    assert sum(lost) == 10
    assert [record.getMessage() for record in caplog.records] == [
        "the access log cannot be written: [Errno 28] No space left on device"
    ]


def test_half_a_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "access.jsonl", os.write
    path.write_text('{"number":0}\n')
    monkeypatch.setattr("os.write", lambda file, content: write(file, content[:5]))
    lost: list[int] = []
    log = make_log(path, lost)
    log.add({"number": 1})
    log.close()
    assert (path.read_text(), lost) == ('{"number":0}\n', [1])


def test_a_folder_that_is_gone_costs_lines_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lost: list[int] = []
    log = make_log(folder / "access.jsonl", lost)
    log.add({"number": 0})
    wait_until(lambda: lost == [1])
    folder.mkdir()
    log.add({"number": 1})
    log.close()
    assert read_numbers(folder / "access.jsonl") == [1]


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "access.jsonl").symlink_to(tmp_path / "elsewhere")
    lost: list[int] = []
    log = make_log(tmp_path / "access.jsonl", lost)
    log.add({"number": 0})
    log.close()
    assert lost == [1]
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_WAITING", 10)
    lost: list[int] = []
    log = make_log(tmp_path / "access.jsonl", lost)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    started = time.monotonic()
    for number in range(100):
        log.add({"number": number})
    took = time.monotonic() - started
    assert 85 <= len(lost) <= 90
    assert took < 0.5
    os.close(folder)
    wait_until(lambda: len(read_kept(tmp_path)) == 100 - len(lost))
    log.close()


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    log = AccessLog(None, limit_bytes=1, older=1, drop=lambda _: None)
    log.add({"number": 1})
    log.close()
    assert list(tmp_path.iterdir()) == []


def read_kept(folder: Path) -> list[str]:
    path = folder / "access.jsonl"
    return path.read_text().splitlines() if path.exists() else []
