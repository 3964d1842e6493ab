"""The core's report is read whole or not at all."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream.steering.state import FRESH_SECONDS, KINDS, MOST_BYTES, KindCounts, read_state
from slipstream.vllm_plugin.steering import state_reading
from slipstream.vllm_plugin.steering.steering import Steering
from tests.unit.steering.states import make_state
from tests.unit.vllm_plugin.steering.reports import make_report, write_report


def test_a_report_loads_back(tmp_path: Path) -> None:
    state = read_state(write_report(tmp_path / "steering.json"), time.time())
    assert state is not None
    assert state.kinds["code"].tokens_per_step == 1 + 3050 / 1400
    (tmp_path / "again.json").write_text(state.to_json())
    assert read_state(tmp_path / "again.json", state.at) == state


def test_both_readers_read_what_the_core_writes(tmp_path: Path) -> None:
    core = Steering(tmp_path, range(4), longest=3, planned=None)
    try:
        core.ledger.begin("one", {"slipstream": "4f - code chat"}, 0.0)
        for _ in range(40):
            core.ledger.see_draft("one", 3, 2)
            core.ledger.see_tokens("one", 3, 1, now=1.0)
            core.see_step(
                {"one": 4},
                {"one": [1, 2, 3]},
                3,
                tokens=3,
                seconds=0.05,
                waiting=2,
                cache=0.25,
            )
        document = core.describe()
    finally:
        core.close()
    (tmp_path / "steering.json").write_text(json.dumps(document))
    state = read_state(tmp_path / "steering.json", time.time())
    assert state is not None
    assert (state.steers, state.longest, state.running, state.waiting) == (True, 3, 1, 2)
    assert state.kinds["code"].accepted == (40, 40, 0)
    assert [one.draft_length for one in state.lengths] == [3]
    report = state_reading.read_report(str(tmp_path / "steering.json"))
    assert report is not None
    assert report.kinds["code"].accepted == state.kinds["code"].accepted
    assert (report.draft_length, report.tokens) == (state.draft_length, state.tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": -1},
        {"tokens": float("nan")},
        {"kinds": {"my prompt": make_report()["kinds"]["code"]}},
        {"schema_version": 2},
        {"unknown": 1},
        {"pid": "x" * MOST_BYTES},
    ],
)
def test_what_this_version_does_not_read_is_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_state(write_report(tmp_path / "steering.json", **changes), time.time()) is None


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "steering.json", 0) is None
    assert read_state(tmp_path, 0) is None


def test_both_readers_know_the_same_kinds_and_age() -> None:
    assert KINDS == state_reading.KINDS
    assert FRESH_SECONDS == state_reading.FRESH_SECONDS


def test_an_old_report_is_none(tmp_path: Path) -> None:
    file = write_report(tmp_path / "steering.json", at=1000)
    assert read_state(file, 1000 + FRESH_SECONDS) is not None
    assert read_state(file, 1001 + FRESH_SECONDS) is None


def make_counts(**changes: Any) -> KindCounts:
    return make_state().kinds["code"].model_copy(update=changes)


def test_counts_in_between_are_differences() -> None:
    before = make_counts(requests=10, steps=1000, drafts=1000, accepted=(1000, 800))
    recent = make_counts().since(before)
    assert (recent.requests, recent.steps, recent.drafts) == (2, 500, 400)
    assert recent.accepted == (100, 0, 500, 300, 200, 100, 50)


def test_counts_of_an_engine_that_was_started_anew_are_whole() -> None:
    assert make_counts().since(make_counts(steps=9999)) == make_counts()
    assert make_counts().since(None) == make_counts()


def test_without_drafts_there_are_no_tokens_per_step() -> None:
    assert make_counts(drafts=0).tokens_per_step is None
