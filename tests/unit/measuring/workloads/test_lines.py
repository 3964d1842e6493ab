"""Lines are read from plain and gzipped files; a logged request is opened up."""

import gzip
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.measuring.workloads.lines import Line, ReadLine, find_obstacle, read_lines


def read(path: Path, content: bytes) -> list[ReadLine[Line]]:
    path.write_bytes(content)
    return read_lines([path], Line, hint="write it anew")


def test_a_line_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = read(path, b'"first"\n\n"third"\n')
    assert [(line.place, line.record.prompt) for line in lines] == [
        (f"{path}:1", "first"),
        (f"{path}:3", "third"),
    ]


def test_a_gzipped_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    plain = read(tmp_path / "a", b'"a"\n"b"\n')
    packed = read(tmp_path / "b", gzip.compress(b'"a"\n"b"\n'))
    assert [line.record for line in packed] == [line.record for line in plain]


@pytest.mark.parametrize(
    "broken", [gzip.compress(b'"a"', mtime=0)[:-9], b"\x1f\x8b\x08", b"\x1f\x8b\x07" + bytes(20)]
)
def test_a_broken_archive_is_refused(tmp_path: Path, broken: bytes) -> None:
    with pytest.raises(InvalidInputError, match=f"cannot read {tmp_path / 'a'}: ") as caught:
        read(tmp_path / "a", broken)
    assert caught.value.hint == "write it anew"


@pytest.mark.parametrize("key", ["request", "body"])
def test_a_logged_request_lends_its_messages(tmp_path: Path, key: str) -> None:
    logged = f'{{"custom_id": "1", "{key}": {{"messages": [{{"role": "user", "content": "a"}}]}}}}'
    (line,) = read(tmp_path / "a", logged.encode())
    assert [turn.text for turn in line.record.turns] == ["a"]


def test_a_developer_speaks_as_the_system(tmp_path: Path) -> None:
    content = b'{"messages": [{"role": "developer", "content": "Be brief."}]}'
    (line,) = read(tmp_path / "a", content)
    assert line.record.turns[0].role == "system"


@pytest.mark.parametrize(
    ("calls", "obstacle"), [('[{"id": "1"}]', None), ("[]", "content other than text")]
)
def test_a_call_of_a_tool_needs_no_text(tmp_path: Path, calls: str, obstacle: str | None) -> None:
    asked = '{"role": "user", "content": "a"}'
    called = f'{{"role": "assistant", "content": null, "tool_calls": {calls}}}'
    got = '{"role": "tool", "content": "4"}'
    (line,) = read(tmp_path / "a", f'{{"messages": [{asked}, {called}, {got}]}}'.encode())
    assert find_obstacle(line.record.turns) == obstacle
