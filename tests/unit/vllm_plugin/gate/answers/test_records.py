"""Lines of the access log are whole and delay nobody; what is recorded is its owner's alone."""

import fcntl
import json
import logging
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.access.gate_file import GateRecording
from slipstream.serving.access.keys import make_key
from slipstream.training.prompts import read_prompts
from slipstream.vllm_plugin.gate.answers import records
from slipstream.vllm_plugin.gate.answers.records import AccessLog
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.vllm_plugin.gate.callers.test_key_ring import NOW
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask,
    ask_chat,
    make_gate,
    wait_until,
)

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


def write_lines(log: AccessLog, numbers: Iterable[int]) -> None:
    for number in numbers:
        log.add({"number": number})
    log.close()


def read_numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def test_lines_are_private_and_in_order(tmp_path: Path) -> None:
    lost: list[int] = []
    write_lines(make_log(tmp_path / "access.jsonl", lost), range(1000))
    assert read_numbers(tmp_path / "access.jsonl") == list(range(1000))
    assert (tmp_path / "access.jsonl").stat().st_mode & 0o777 == 0o600
    assert lost == []


@pytest.mark.parametrize("older", [0, 2])
def test_a_full_file_is_moved_aside_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: int
) -> None:
    monkeypatch.setattr(records, "LINES_PER_WRITE", 1)
    path = tmp_path / "access.jsonl"
    write_lines(make_log(path, [], limit_bytes=150, older=older), range(100, 145))
    files = [path, tmp_path / "access-1.jsonl", tmp_path / "access-2.jsonl"][: older + 1]
    assert {*tmp_path.iterdir()} == {*files}
    assert read_numbers(path) == list(range(140, 145))
    for number, file in enumerate(files[1:], start=1):
        assert read_numbers(file) == list(range(140 - 10 * number, 150 - 10 * number))


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
    write_lines(make_log(path, []), [1])
    assert path.read_text().splitlines() == ['{"number":0}', '{"numb', '{"number":1}']


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[int] = []
    write_lines(make_log(Path("/dev/full"), lost), range(10))
    assert sum(lost) == 10
    assert [record.getMessage() for record in caplog.records] == [
        "the access log cannot be written: [Errno 28] No space left on device"
    ]


def test_a_line_that_cannot_be_written_ends_no_thread(tmp_path: Path) -> None:
    lost: list[int] = []
    log = make_log(tmp_path / "access.jsonl", lost)
    log.add({"number": object()})
    wait_until(lambda: lost == [1])
    write_lines(log, [1])
    assert read_numbers(tmp_path / "access.jsonl") == [1]


def test_half_a_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "access.jsonl", os.write
    path.write_text('{"number":0}\n')
    monkeypatch.setattr("os.write", lambda file, content: write(file, content[:5]))
    lost: list[int] = []
    write_lines(make_log(path, lost), [1])
    assert (path.read_text(), lost) == ('{"number":0}\n', [1])


def test_a_folder_that_is_gone_costs_lines_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lost: list[int] = []
    log = make_log(folder / "access.jsonl", lost)
    log.add({"number": 0})
    wait_until(lambda: lost == [1])
    folder.mkdir()
    write_lines(log, [1])
    assert read_numbers(folder / "access.jsonl") == [1]


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "access.jsonl").symlink_to(tmp_path / "elsewhere")
    lost: list[int] = []
    write_lines(make_log(tmp_path / "access.jsonl", lost), [0])
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
    write_lines(AccessLog(None, limit_bytes=1, older=1, drop=lambda _: None), [1])
    assert list(tmp_path.iterdir()) == []


def read_kept(folder: Path) -> list[str]:
    path = folder / "access.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def make_recorder(folder: Path, **own: Any) -> Gate:
    recording = GateRecording(folder=folder / "traffic", **own.pop("recording", {}))
    return make_gate(folder, Engine(), recording=recording, **own)


def read_recorded(folder: Path) -> list[dict[str, Any]]:
    file = folder / "traffic" / "requests.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read_conversations(folder: Path) -> list[list[tuple[str, str]]]:
    """Read the recording as `slipstream train` does."""
    conversations, _ = read_prompts([folder / "traffic" / "requests.jsonl"], seed=0)
    return [[(one["role"], one["content"]) for one in row.messages] for row in conversations]


def say(kind: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": kind, "text": "Hi"}]}


def test_nothing_is_recorded_unless_it_was_asked_for(tmp_path: Path) -> None:
    ask_chat(make_gate(tmp_path, Engine()))
    assert [path.name for path in tmp_path.iterdir()] == ["gate.json"]


def test_a_request_is_kept_with_its_sampling_parameters(tmp_path: Path) -> None:
    gate = make_recorder(tmp_path)
    sampled: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "max_tokens": 5,
        "stream": True,
    }
    ask_chat(gate, user="ann", n=None, **sampled)
    (line,) = read_recorded(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", line.pop("recorded_at"))
    assert line == HELLO | sampled
    assert read_conversations(tmp_path) == [[("user", "Hello")]]


BRIEF = [[("system", "Be brief."), ("user", "Hi")]]
HI = {"role": "user", "content": "Hi"}
RESPONSES = "/v1/responses"


@pytest.mark.parametrize(
    ("path", "document", "conversations"),
    [
        (
            *(CHAT, {"messages": [{"role": "developer", "content": "Be brief."}, say("text")]}),
            BRIEF,
        ),
        ("/v1/completions", {"prompt": "Once"}, [[("user", "Once")]]),
        ("/v1/completions", {"prompt": ["One", "Two"]}, [[("user", "One")], [("user", "Two")]]),
        (RESPONSES, {"instructions": "Be brief.", "input": "Hi"}, BRIEF),
        (RESPONSES, {"input": [say("input_text")]}, [[("user", "Hi")]]),
        (
            *(
                "/v1/messages",
                {"system": [{"type": "text", "text": "Be brief."}], "messages": [HI]},
            ),
            BRIEF,
        ),
    ],
)
def test_the_requests_of_every_api_can_be_trained_on(
    tmp_path: Path, path: str, document: dict[str, Any], conversations: list[list[tuple[str, str]]]
) -> None:
    gate = make_recorder(tmp_path, routes=[f"POST {path}"])
    assert ask(gate, path, json=document).status_code == 200
    assert read_conversations(tmp_path) == conversations


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"role": "critic", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": ["a bare text"]}]},
        {"messages": [{"role": "user", "content": [{"text": "no type"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
        {"messages": [{"content": "Hi"}]},
        {"messages": None},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"input": [{"type": "function_call", "name": "x"}]},
        {"prompt": [1, 2, 3]},
        {**HELLO, "temperature": 10**400},
        {},
    ],
    ids=lambda document: str(document)[:60],
)
def test_what_the_reader_cannot_read_is_left_out(tmp_path: Path, document: dict[str, Any]) -> None:
    gate = make_recorder(tmp_path)
    body = json.dumps(document).replace("1" + "0" * 400, "1e999")
    assert ask(gate, CHAT, content=body).status_code == 200
    assert read_recorded(tmp_path) == []
    ask_chat(gate)
    assert read_conversations(tmp_path) == [[("user", "Hello")]]


def test_tool_calls_are_kept_for_the_reader_to_skip(tmp_path: Path) -> None:
    gate = make_recorder(tmp_path)
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    ask_chat(gate, messages=[*HELLO["messages"], called, {"role": "tool", "content": "4"}])
    ask_chat(gate)
    _, counts = read_prompts([tmp_path / "traffic" / "requests.jsonl"], seed=0)
    assert (counts["read"], counts["skipped"]) == (2, 1)


def test_what_matches_a_pattern_is_struck_out_everywhere(tmp_path: Path) -> None:
    patterns = (r"[\w.]+@[\w.]+", r"\d{4}-\d{4}")
    gate = make_recorder(tmp_path, recording={"redact": patterns})
    said = [
        {"role": "system", "content": [{"type": "text", "text": "Write to ann@example.org."}]},
        {"role": "user", "content": "My card is 1234-5678, not 12-34."},
    ]
    ask_chat(gate, messages=said, stop=["bob@example.org"], model="m")
    (line,) = read_recorded(tmp_path)
    assert line["messages"][0]["content"] == [{"type": "text", "text": "Write to [redacted]"}]
    assert line["messages"][1]["content"] == "My card is [redacted], not 12-34."
    assert line["stop"] == ["[redacted]"]


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ask_chat(make_recorder(tmp_path))
    finally:
        os.umask(before)
    folder = tmp_path / "traffic"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "requests.jsonl")]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o750, 0o600), (0o700, 0o640)])
def test_where_others_can_read_nothing_is_recorded(
    tmp_path: Path, folder_mode: int, file_mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "traffic" / "requests.jsonl"
    file.parent.mkdir(mode=folder_mode)
    file.touch(mode=file_mode)
    gate = make_recorder(tmp_path)
    assert [ask_chat(gate).status_code for _ in range(2)] == [200, 200]
    assert file.read_bytes() == b""
    assert [record.getMessage() for record in caplog.records] == [
        f"no more requests are recorded: other users can read {tmp_path / 'traffic'}"
    ]


def test_a_link_in_the_recordings_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "traffic").mkdir(mode=0o700)
    (tmp_path / "victim").write_text("")
    (tmp_path / "traffic" / "requests.jsonl").symlink_to(tmp_path / "victim")
    assert ask_chat(make_recorder(tmp_path)).status_code == 200
    assert (tmp_path / "victim").read_text() == ""


def test_no_key_and_no_header_is_recorded(tmp_path: Path) -> None:
    made = make_key(tmp_path / "keys.json", "ann", now=NOW, expires=None)
    gate = make_recorder(tmp_path, keys_file=tmp_path / "keys.json")
    ask(gate, CHAT, key=made.secret, json=HELLO, headers={"x-tenant": "acme"})
    kept = (tmp_path / "traffic" / "requests.jsonl").read_text()
    assert len(read_recorded(tmp_path)) == 1
    assert not [
        word for word in (made.secret, made.key.id, made.key.sha256, "acme") if word in kept
    ]


def test_over_its_limit_it_stops_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = make_recorder(tmp_path, recording={"limit_bytes": 400})
    with caplog.at_level(logging.WARNING):
        assert [ask_chat(gate).status_code for _ in range(9)] == [200] * 9
    size = (tmp_path / "traffic" / "requests.jsonl").stat().st_size
    length = size // len(read_recorded(tmp_path))
    assert 400 - length < size <= 400
    assert [record.getMessage() for record in caplog.records] == [
        "no more requests are recorded: 400 bytes are full"
    ]


def test_prompts_over_the_limit_break_nothing(tmp_path: Path) -> None:
    gate = make_recorder(tmp_path, recording={"limit_bytes": 100})
    document = {"prompt": ["x" * 80] * 3}
    assert [ask(gate, "/v1/completions", json=document).status_code for _ in range(2)] == [200, 200]
    assert read_recorded(tmp_path) == []


def test_a_new_start_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    for _ in range(2):
        ask_chat(make_recorder(tmp_path))
    assert len(read_recorded(tmp_path)) == 2


def test_half_a_recording_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = make_recorder(tmp_path)
    ask_chat(gate)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:10]))
    assert ask_chat(gate).status_code == 200
    assert len(read_recorded(tmp_path)) == 1


def test_refused_requests_and_the_supervisors_are_not_recorded(tmp_path: Path) -> None:
    routes = ["POST /tokenize", f"POST {CHAT}", "POST /v1/completions"]
    gate = make_recorder(tmp_path, probe_sha256=sha256(b"probe").hexdigest(), routes=routes)
    ask_chat(gate, n=1000)
    probe = {"prompt": "Once", "max_tokens": 1}
    assert ask(gate, "/v1/completions", key="probe", json=probe).status_code == 200
    ask(gate, "/tokenize", json={"prompt": "x"})
    assert read_recorded(tmp_path) == []
