"""What `top` draws fits every width, harms no terminal and says what it does not know."""

import re
from datetime import timedelta
from typing import Any

import pytest

from slipstream.reporting.serving.top import SHOWN_KEYS, Terminal, render_top
from slipstream.serving.live_view import EngineFigures, LiveView, ProcessMemory, Traffic
from slipstream.serving.messages import CallerCounts, GateCounts
from slipstream.serving.run import Event
from slipstream.serving.run_status import RunStatus
from slipstream.steering.guardian import Drift
from slipstream.steering.percentiles import Percentiles
from slipstream.steering.state import LengthEstimate
from tests.snapshots import read_snapshot
from tests.unit.serving.kept_runs import AT
from tests.unit.steering.states import make_state

NOW = AT + timedelta(hours=2, minutes=3)
STATUS = RunStatus(
    id="Qwen3-8B-20261115-061712-4711",
    folder="runs/one",
    state="ready",
    since=AT,
    began_at=AT,
    message=None,
    url="http://127.0.0.1:8000",
    target="Qwen/Qwen3-8B",
    drafter="z-lab/Qwen3-8B-DFlash-b16",
    supervisor_pid=4711,
    engine_pid=4720,
    engine_bytes=5 << 30,
    restarts=0,
    rungs=(),
    notes=(),
    measurements={},
    in_flight=3,
    waiting=2,
    last_token_seconds_ago=0.4,
    next_command="curl",
)
EVENTS = (
    Event(at=AT + timedelta(seconds=40), state="warming", message="warm-up 3: 24 ms per token"),
    Event(
        at=AT + timedelta(seconds=45),
        state="ready",
        message="ready at http://127.0.0.1:8000: 41.3 tokens/s alone, 3.46 tokens per step",
    ),
)
HISTORY = [float(abs(30 - at % 60)) for at in range(200)] + [55.2]


def make_view(**changes: Any) -> LiveView:
    view = LiveView(
        at=NOW,
        status=STATUS,
        steering=make_state(at=NOW.timestamp()),
        engine=EngineFigures(cache_queries=100, cache_hits=34, kv_usage=0.1),
        traffic=Traffic(
            seconds=300,
            requests=61,
            refused=4,
            first_token=Percentiles(p50=0.21, p90=0.48, p95=0.61, p99=0.93),
        ),
        counts=GateCounts(
            pid=4720,
            in_flight=3,
            waiting=2,
            total=127,
            by_key={
                "anyone": CallerCounts(in_flight=1, total=7),
                "3f9a01c2": CallerCounts(in_flight=2, waiting=2, total=120),
            },
        ),
        processes=(
            ProcessMemory(pid=4730, role="core", bytes=4 << 30),
            ProcessMemory(pid=4720, role="API server", bytes=1 << 30),
        ),
        events=EVENTS,
    )
    return view.model_copy(update=changes)


@pytest.mark.parametrize("width", [40, 80, 130])
def test_a_run_is_drawn_at_any_width(width: int) -> None:
    shown = render_top(make_view(), Terminal(width=width), history=HISTORY)
    assert max(map(len, shown)) <= width
    text = "\n".join(shown) + "\n"
    assert text == read_snapshot(f"top-{width}.txt", text)


@pytest.mark.parametrize("width", [1, 2, 20, 60, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    wide = make_view(status=STATUS.model_copy(update={"id": "run-" + "模型" * 40}))
    for line in render_top(wide, Terminal(width=width, colour=False), history=HISTORY):
        assert sum(2 if sign in "模型" else 1 for sign in line) <= width


def test_no_more_rows_are_drawn_than_fit() -> None:
    assert len(render_top(make_view(), Terminal(rows=5))) == 5


def test_nothing_of_others_reaches_the_terminal_as_a_command() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\n\r"
    status = STATUS.model_copy(update={"id": evil, "drafter": evil})
    view = make_view(
        status=status,
        counts=GateCounts(pid=1, by_key={evil: CallerCounts(in_flight=1, total=1)}),
        processes=(ProcessMemory(pid=1, role=evil, bytes=1 << 30),),
        events=(EVENTS[0].model_copy(update={"message": evil}),),
    )
    shown = render_top(view, Terminal(width=200))
    assert shown
    assert all(line.isprintable() for line in shown)


def test_a_plain_terminal_gets_ascii_and_another_one_colour() -> None:
    plain = render_top(make_view(), Terminal(width=80, unicode=False), history=HISTORY)
    assert "\n".join(plain).isascii()
    coloured = render_top(make_view(), Terminal(width=80, colour=True), history=HISTORY)
    bold = [line for line in coloured if line.startswith("\033[1m")]
    assert len(bold) == 5
    assert all(line.endswith("\033[0m") for line in bold)
    bars = [line for line in coloured if "\033[36m" in line]
    assert [line.split()[0] for line in bars] == ["throughput", "cache"]
    uncoloured = [re.sub(r"\033\[\d*m", "", line) for line in coloured]
    assert uncoloured == render_top(make_view(), Terminal(width=80), history=HISTORY)


def test_what_is_not_known_is_called_so() -> None:
    view = make_view(
        status=STATUS.model_copy(update={"in_flight": None, "engine_bytes": None}),
        steering=None,
        engine=None,
        traffic=None,
        counts=None,
        processes=(),
        events=(),
    )
    rows = dict(line.split("  ", 1) for line in render_top(view, Terminal())[1:])
    shown = {name: value.strip() for name, value in rows.items()}
    unknown = ("throughput", "batch", "draft length", "step", "cache")
    assert {shown[name] for name in unknown} == {"unknown"}
    assert (shown["first token"], shown["memory"]) == ("no streams lately", "no engine")


def test_without_a_report_acceptance_is_vllms_own() -> None:
    engine = EngineFigures(drafts=100, drafted=700, accepted=(90, 60), running=4, waiting=1)
    view = make_view(steering=None, engine=engine)
    shown = render_top(view, Terminal())
    assert "all        127         2.50  90  60" in shown
    assert any("4 running, 1 waiting in the engine" in line for line in shown)


def test_acceptance_is_of_late_if_there_were_drafts() -> None:
    state = make_state(at=NOW.timestamp())
    code = state.kinds["code"]
    earlier = code.model_copy(
        update={
            **{"requests": 11, "tokens": 3700, "steps": 1400},
            **{"drafts": 1300, "accepted": (1050,) + (0,) * 6},
        }
    )
    before = make_view(
        steering=state.model_copy(update={"kinds": {**state.kinds, "code": earlier}})
    )
    shown = render_top(make_view(), Terminal(), before=before)
    assert any(line.endswith("of the last minute") for line in shown)
    assert [line.split()[:4] for line in shown if line.startswith("code")] == [
        ["code", "1", "3.00", "50"]
    ]
    assert not any(line.startswith("prose") for line in shown)
    quiet = render_top(make_view(), Terminal(), before=make_view())
    assert any(line.endswith("since the engine started") for line in quiet)


def test_copied_tokens_are_a_column_where_anything_was_copied() -> None:
    state = make_state(at=NOW.timestamp())
    none, some = (
        {
            kind: counts.model_copy(update={"copies": copies, "copied_accepted": accepted})
            for kind, counts in state.kinds.items()
        }
        for copies, accepted in ((0, 0), (100, 900))
    )
    some["prose"] = none["prose"]
    plain, shown = (
        render_top(make_view(steering=state.model_copy(update={"kinds": kinds})), Terminal())
        for kinds in (none, some)
    )
    assert len(shown) == len(plain)
    assert not any("COPIED" in line for line in plain)
    assert [line.split()[:5] for line in shown if line.startswith(("KIND", "code", "prose"))] == [
        ["KIND", "REQUESTS", "TOKENS/STEP", "COPIED", "1"],
        ["code", "12", "2.67", "22%", "79"],
        ["prose", "3", "1.29", "0%", "43"],
    ]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "5 of 7, steered"),
        ({"steers": False, "draft_length": 7}, "7 of 7, fixed"),
        ({"most": 5, "least": 2}, "5 of 7, steered, at least 2 (limit set), at most 5 (limit set)"),
        (
            {"draft_length": 0, "plain_pays": True, "most": 0},
            "0 of 7, steered, a step without drafts is the fastest, at most 0 (limit set)",
        ),
        (
            {"draft_length": 0, "plain_pays": True},
            "0 of 7, steered, a step without drafts is the fastest",
        ),
        ({"draft_length": None}, "unknown"),
    ],
)
def test_the_draft_length_is_told_with_what_bounds_it(changes: dict[str, Any], shown: str) -> None:
    drawn = render_top(make_view(steering=make_state(**changes)), Terminal(width=120))
    (line,) = [line for line in drawn if line.startswith("draft length")]
    assert line == f"draft length  {shown}"


@pytest.mark.parametrize(
    ("speeds", "shown"),
    [
        (
            {0: 100.0, 3: 150.0, 7: None},
            "drafts pay? yes, 1.5 x or so\nto measure it: slipstream compare Qwen/Qwen3-8B",
        ),
        (
            {0: 100.0, 3: 50.0},
            "drafts pay? no, 0.5 x or so\nto measure it: slipstream compare Qwen/Qwen3-8B",
        ),
        (
            {0: None, 3: 50.0},
            "drafts pay? no step without drafts was measured; for a few requests set\n"
            f"slipstream swap {STATUS.id} --k 0  # then --k any",
        ),
        (
            {0: 100.0, 3: None},
            "drafts pay? no step with drafts was measured; for a few requests set\n"
            f"slipstream swap {STATUS.id} --k any",
        ),
    ],
)
def test_whether_drafts_pay_is_said_under_the_lengths(
    speeds: dict[int, float | None], shown: str
) -> None:
    lengths = tuple(
        LengthEstimate(
            draft_length=length,
            step_seconds=0.01,
            tokens_per_step=1.0,
            tokens_per_second=speed,
            steps=1,
        )
        for length, speed in speeds.items()
    )
    view = make_view(steering=make_state(lengths=lengths))
    assert shown in "\n".join(render_top(view, Terminal()))


@pytest.mark.parametrize("steers", [True, False])
def test_a_length_that_nobody_measured_waits_for_tune(steers: bool) -> None:
    waiting = STATUS.model_copy(update={"awaits_tuning": True})
    view = make_view(status=waiting, steering=make_state(steers=steers))
    shown = "\n".join(render_top(view, Terminal(width=120)))
    asks = "fixed, waiting to be measured: slipstream tune Qwen/Qwen3-8B" in shown
    assert asks is not steers


def test_what_has_become_worse_or_is_not_as_planned_is_shown() -> None:
    drift = Drift(
        family="first position",
        where="code",
        before=0.8,
        after=0.4,
        requests=120,
        times=1,
        at=AT.timestamp(),
    )
    changes = {"drifts": (drift,), "run_notes": ("slipstream steering: not applied: why",)}
    shown = render_top(make_view(status=STATUS.model_copy(update=changes)), Terminal(width=200))
    assert [line for line in shown if line.startswith(("drift", "note"))] == [
        f"drift         {drift.describe()}",
        "note          slipstream steering: not applied: why",
    ]


@pytest.mark.parametrize(
    ("drafter", "shown"),
    [
        (None, "none: plain decoding"),
        ("z-lab/Qwen3-8B-DFlash-b16", "z-lab/Qwen3-8B-DFlash-b16"),
        ("/models/my-drafter", "my-drafter"),
    ],
)
def test_a_drafter_is_told_by_its_name(drafter: str | None, shown: str) -> None:
    view = make_view(status=STATUS.model_copy(update={"drafter": drafter}))
    assert f"drafter       {shown}" in render_top(view, Terminal())


def test_of_many_keys_the_busiest_are_shown() -> None:
    by_key = {f"key-{number}": CallerCounts(in_flight=0, total=1) for number in range(50)}
    shown = render_top(make_view(counts=GateCounts(pid=1, by_key=by_key)), Terminal())
    assert sum(line.startswith("key-") for line in shown) == SHOWN_KEYS
    assert f"and {50 - SHOWN_KEYS} more" in shown
