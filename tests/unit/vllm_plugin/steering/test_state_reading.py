"""Whatever steering.json holds, its reader returns a bounded report or nothing."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.vllm_plugin.steering.state_reading import (
    FRESH_SECONDS,
    KINDS,
    MOST_BYTES,
    MOST_POSITIONS,
    SteeringReport,
    read_report,
)
from tests.unit.vllm_plugin.steering.reports import make_estimate, make_report, write_report

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def read(folder: Path, **changes: Any) -> SteeringReport | None:
    return read_report(str(write_report(folder / "steering.json", **changes)))


def test_a_report_is_read_whole(tmp_path: Path) -> None:
    report = read(tmp_path)
    assert report is not None
    assert (report.steers, report.draft_length, report.longest) == (True, 5, 7)
    assert (report.least, report.most, report.plain_pays) == (None, None, False)
    assert (report.running, report.waiting, report.kv_usage) == (3, 1, 0.12)
    assert report.kinds["code"].accepted == (1100, 800, 500, 300, 200, 100, 50)
    assert [one.draft_length for one in report.lengths] == [0, 3, 5]


def test_an_old_report_does_not_count(tmp_path: Path) -> None:
    now = time.time()
    file = str(write_report(tmp_path / "steering.json", at=now))
    assert read_report(file, now=now + FRESH_SECONDS - 0.1) is not None
    assert read_report(file, now=now + FRESH_SECONDS + 0.1) is None
    assert read_report(file, now=now - FRESH_SECONDS - 0.1) is None


def test_without_a_file_there_is_no_report(tmp_path: Path) -> None:
    assert read_report(None) is None
    assert read_report(str(tmp_path / "steering.json")) is None
    assert read_report(str(tmp_path)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (MOST_BYTES + 1),
        json.dumps(make_report()).encode()[:-20],
        json.dumps(make_report(at=float("nan"))).encode(),
        json.dumps(make_report(tokens=float("inf"))).encode(),
        json.dumps(make_report(tokens=10**400)).encode(),
        json.dumps(make_report(tokens=-1)).encode(),
        json.dumps(make_report(tokens=True)).encode(),
        json.dumps(make_report(schema_version=2)).encode(),
        json.dumps(make_report(kinds={"code": {}})).encode(),
        json.dumps(make_report(lengths={"0": 1})).encode(),
        json.dumps(make_report(most="3")).encode(),
    ],
)
def test_a_broken_file_is_no_report(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "steering.json").write_bytes(content)
    assert read_report(str(tmp_path / "steering.json")) is None


@given(key=st.sampled_from(sorted(make_report())), value=ANY_JSON)
def test_no_value_raises(tmp_path_factory: pytest.TempPathFactory, key: str, value: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    report = read(folder, **{key: value})
    assert report is None or set(report.kinds) <= set(KINDS)


def test_kinds_positions_and_lengths_are_bounded(tmp_path: Path) -> None:
    counts = make_report()["kinds"]["code"] | {"accepted": [1] * 10_000}
    report = read(
        tmp_path,
        kinds={"code": counts, "\x1b[31m": counts, "my-prompt": counts},
        lengths=[make_estimate(length, 0.1, 1, 1) for length in range(1000)],
    )
    assert report is not None
    assert list(report.kinds) == ["code"]
    assert len(report.kinds["code"].accepted) == MOST_POSITIONS
    assert len(report.lengths) == MOST_POSITIONS + 1
