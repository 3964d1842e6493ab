"""Recorded requests: ledgers, access logs, public traces, and files that are none of these."""

import json
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.sizing.recording import read_recording
from tests.unit.steering.lines import write

BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,Conversation log
118,GPT-4,417,276,693,API log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2220670,879,55
"""


def test_a_ledger_says_when_requests_came_and_what_was_cached(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(
        write(at=1010.0, seconds=5.0, tokens=64)
        + write(at=1012.0, seconds=2.0, kind="prose", cached_tokens=0, tokens=32)
        + write(at=1013.0, seconds=1.0, key="supervisor")
        + b"no line\n"
    )
    recording = read_recording(file, "other")
    assert [one.at for one in recording.arrivals] == [0.0, 5.0]
    assert [one.kind for one in recording.arrivals] == ["code", "prose"]
    assert [one.prompt_tokens for one in recording.arrivals] == [44, 300]
    assert recording.left_out == 2
    code = next(kind for kind in recording.demand.kinds if kind.kind == "code")
    assert code.cached_share == pytest.approx(256 / 300)
    assert recording.demand.requests_per_second == pytest.approx(2 / 10)


@pytest.mark.parametrize(
    ("text", "tokens", "apart"),
    [(BURSTGPT, [(472, 18), (1087, 230), (417, 276)], 113.0), (AZURE, None, 4.541477)],
)
def test_a_public_trace_is_read_and_what_got_no_answer_is_left_out(
    tmp_path: Path, text: str, tokens: list[tuple[int, int]] | None, apart: float
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    arrivals = read_recording(file, "dialogue").arrivals
    assert {one.kind for one in arrivals} == {"dialogue"}
    assert arrivals[-1].at - arrivals[0].at == pytest.approx(apart, abs=1e-4)
    if tokens is not None:
        assert [(one.prompt_tokens, one.output_tokens) for one in arrivals] == tokens


def test_an_access_log_is_read_and_refusals_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    usual = {"seconds": 2.0, "prompt_tokens": 90, "completion_tokens": 20, "refused": None}
    lines = [
        {"at": "2026-11-16T10:00:00Z", **usual},
        {"at": "2026-11-16T10:00:04Z", **usual},
        {"at": "2026-11-16T10:00:05Z", **usual, "refused": "no key"},
        {"at": "2026-11-16T10:00:06Z", **usual, "completion_tokens": None},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recording = read_recording(file, "code")
    assert [one.at for one in recording.arrivals] == [0.0, 4.0]
    assert recording.left_out == 2


def test_the_busiest_hour_is_replayed_and_the_day_has_its_course(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = [
        f"{3600 * hour + 3600 * number / count},10,20"
        for hour in range(24)
        for count in [30 if hour == 15 else 10]
        for number in range(count)
    ]
    file.write_text("Timestamp,Request tokens,Response tokens\n" + "\n".join(rows))
    recording = read_recording(file, "code")
    assert len(recording.arrivals) == 30
    assert recording.demand.hours[15] == 1.0
    assert recording.demand.hours[3] == pytest.approx(1 / 3)
    assert recording.demand.requests_per_second == pytest.approx(30 / 3600)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe" * 100,
        b"a,b,c\n1,2,3\n",
        b"Timestamp,Request tokens,Response tokens\n1,2,3\n",
        b"Timestamp,Request tokens,Response tokens\nnan,2,3\ninf,2,3\n1e400,5,5\n",
        b"Timestamp,Request tokens,Response tokens\n1,-2,3\n2,99999999999999999999,3\n",
    ],
)
def test_a_file_without_two_requests_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("trace.csv", "trace.jsonl"):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(InvalidInputError):
            read_recording(file, "code")


def test_lines_that_are_json_but_no_requests_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    odd = [b"[]", b'"x"', b"1", b"null", b'{"at": 1}', b'{"at": "x"}', b"[" * 5000]
    odd.append(b'{"at": 3, "seconds": 1, "prompt_tokens": true, "tokens": "9"}')
    file.write_bytes(b"\n".join(odd) + b"\n" + write(at=5.0) + write(at=9.0))
    recording = read_recording(file, "code")
    assert (len(recording.arrivals), recording.left_out) == (2, 8)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trace.csv", b"Timestamp,Request tokens,Response tokens\n1,10,20\n1e15,10,20\n"),
        ("l.jsonl", b"".join(write(at=10.0 + n, kind=f"kind {n}") for n in range(40))),
    ],
)
def test_times_that_are_no_seconds_and_a_kind_per_request_are_refused(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match="probably misread"):
        read_recording(tmp_path / name, "code")
