"""The engine that the stages of training plan for themselves, and how they report progress."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.hardware import load_host
from slipstream.training.workspace import Ticker, Workspace
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.training.pieces import SETTINGS, change, converse, open_workspace


def open_on(folder: Path, machine: str, *features: str) -> Workspace:
    """Open a workspace on a machine whose processor has these instructions."""
    host = load_host(machine)
    processor = host.processor.model_copy(update={"features": features})
    host = host.model_copy(update={"processor": processor})
    return replace(open_workspace(folder), host=host)


@pytest.mark.parametrize(
    ("machine", "features", "dtype", "planned"),
    [
        ("cpu-server", ("avx2", "avx512f"), "float32", "float32"),
        ("cpu-server", ("avx512f", "amx_bf16"), "bfloat16", None),
        ("cpu-server", (), "bfloat16", None),
        ("h100", ("avx2",), "float32", None),
    ],
)
def test_nothing_is_computed_in_bfloat16_where_it_is_emulated(
    tmp_path: Path, machine: str, features: tuple[str, ...], dtype: str, planned: str | None
) -> None:
    space = open_on(tmp_path, machine, *features)
    assert space.dtype == dtype
    plan = space.plan_engine(SETTINGS, [converse("Count the rows.")], drafter=None, users=128)
    decision = plan.find("--dtype")
    assert (decision.value if decision else None) == planned


def test_an_engine_with_a_drafter_reports_its_drafts_and_has_room_for_the_longest_prompt(
    tmp_path: Path,
) -> None:
    space = open_workspace(tmp_path)
    rows = [converse("x", tokens=700), converse("x" * 1000, tokens=500)]
    plain = space.plan_engine(SETTINGS, rows, drafter=None, users=4)
    drafted = space.plan_engine(SETTINGS, rows, drafter=DRAFTER, users=1)
    assert plain.context == drafted.context == SETTINGS.max_tokens + 700
    for words in ("--per-request-spec-decode-metrics", '"num_speculative_tokens": 3'):
        found = [words in " ".join(plan.argv()) for plan in (drafted, plain)]
        assert found == [True, False]
    long = space.plan_engine(change(max_tokens=1 << 20), rows, drafter=None, users=4)
    assert long.context == TARGET.context


def test_a_hub_model_goes_by_its_whole_name_and_a_folder_by_its_own(tmp_path: Path) -> None:
    """What is fetched from the hub lies in a folder that is named by a commit's hash."""
    space = replace(open_workspace(tmp_path), target_folder=tmp_path / "snapshots" / "0a1b2c")
    assert space.target_name == "Qwen/Qwen3-8B"
    folder = tmp_path / "SmolLM2"
    folder.mkdir()
    here = TARGET.model_copy(update={"name": f"{folder}/"})
    assert replace(space, target=here, target_folder=folder).target_name == "SmolLM2"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def tick(*moments: tuple[float, int], total: int, note: str = "") -> list[str]:
    """Show work at (seconds since the start, how much is done)."""
    lines: list[str] = []
    clock = Clock()
    ticker = Ticker(lines.append, "states", unit="tokens", clock=clock)
    for seconds, done in moments:
        clock.now = 100 + seconds
        ticker.show(done, total, note)
    return lines


def test_progress_is_reported_every_twenty_seconds_and_at_the_end() -> None:
    assert tick((0, 0), (10, 50), (19.9, 99), total=1000) == []
    assert tick((0, 0), (20, 100), (30, 140), (40, 200), total=400) == [
        "states: 100 of 400 tokens, 5 tokens/s, 60 s left",
        "states: 200 of 400 tokens, 5 tokens/s, 40 s left",
    ]
    assert tick((0, 0), (4, 8), total=8) == ["states: 8 of 8 tokens, 2 tokens/s"]
    (noted,) = tick((0, 0), (20, 100), total=200, note="loss 2.5")
    assert noted == "states: 100 of 200 tokens, 5 tokens/s, loss 2.5, 20 s left"


def test_what_was_done_before_has_no_rate() -> None:
    (line,) = tick((0, 900), (20, 940), total=1000)
    assert line == "states: 940 of 1000 tokens, 2 tokens/s, 30 s left"
    assert tick((0, 8), total=8) == ["states: 8 of 8 tokens"]
    assert tick((0, 3), (20, 3), total=8) == ["states: 3 of 8 tokens"]


@given(some.floats(0.1, 1e7))
def test_no_common_rate_has_an_exponent(rate: float) -> None:
    (line,) = tick((0, 0), (1000, round(rate * 1000)), total=1 << 50)
    assert "e+" not in line.partition(" tokens/s")[0]
