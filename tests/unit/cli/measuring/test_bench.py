"""`bench`, `compare` and `tune` as a user types them: what they measure, what they refuse."""

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.errors import InvalidInputError
from slipstream.measuring.bench import BenchReport, Conditions
from slipstream.measuring.client.load import draw_arrivals
from slipstream.measuring.comparing.comparison import Comparing
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from tests.unit.cli.pairs import write_pair
from tests.unit.measuring.client.stream_server import (
    ROLE,
    STOP,
    answer_with,
    count,
    refuse,
    run_stream_server,
    say,
    write_events,
)
from tests.unit.vllm_plugin.gate.pieces import make_gate, read_all
from tests.unit.vllm_plugin.gate.test_sockets import serve

Capture = pytest.CaptureFixture[str]

FEW = ("--workload", "code", "--prompts", "2", "--concurrency", "1", "2", "--max-tokens", "8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine without runs and keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(_: dict[str, Any]) -> Iterable[bytes | None]:
    for piece in answer_with(ROLE, say("x"), say("yz"), STOP, count(3, 5)):
        yield piece
        time.sleep(0.02)


def refuse_salt(body: dict[str, Any]) -> Iterable[bytes | None]:
    """Do as a server does that knows no salts."""
    return refuse("400 Bad Request", b"no salt") if "cache_salt" in body else answer(body)


def test_a_server_is_measured_and_the_report_loads_back(here: Path, capsys: Capture) -> None:
    with run_stream_server(answer) as server:
        pages = ("--html", "it.html", "--markdown", "it.md")
        assert run(["bench", server.url, *FEW, *pages, "--json"], {}) == 0
    report = BenchReport.model_validate_json(capsys.readouterr().out)
    assert [(cell.kind, cell.concurrency, cell.requests) for cell in report.cells] == [
        *(("code", 1, 2), ("code", 2, 4))
    ]
    assert (report.conditions.model, report.conditions.prefix_cache) == ("the-model", "cold")
    assert report.conditions.plan is None
    assert "<svg" in (here / "it.html").read_text()
    assert "the-model" in (here / "it.md").read_text()


def test_tasks_are_measured_one_after_the_other_with_tools_if_the_server_parses_calls(
    here: Path, capsys: Capture
) -> None:
    def refuse_tools(body: dict[str, Any]) -> Iterable[bytes | None]:
        asked = body.get("tool_choice", "none") != "none"
        return refuse("400 Bad Request", b"no parser") if asked else answer(body)

    words = ("--workload", "agent-2k", "--prompts", "2", "--json")
    reports = []
    for respond in (answer, refuse_tools):
        with run_stream_server(respond) as server:
            assert run(["bench", server.url, *words, "--html", "it.html"], {}) == 0
        reports.append(BenchReport.model_validate_json(capsys.readouterr().out))
    assert [report.conditions.tool_choice for report in reports] == ["auto", "none"]
    for report in reports:
        assert [(cell.kind, cell.concurrency, cell.failed) for cell in report.cells] == [
            ("agent-2k", 1, 0)
        ]
        assert [sample.turn for sample in report.samples] == [1, 2, 3, 4, 5] * 2
    calls = [report.cells[0].tasks.calls for report in reports if report.cells[0].tasks]
    assert calls == [{"no call": 8}, {}]
    assert "first token by turn" in (here / "it.html").read_text()


def test_requests_can_arrive_at_a_rate(here: Path, capsys: Capture) -> None:
    words = ("--workload", "code", "prose", "--prompts", "6", "--max-tokens", "8", "--rate", "40")
    with run_stream_server(answer) as server:
        assert run(["bench", server.url, *words, "--html", "it.html", "--json"], {}) == 0
        report = BenchReport.model_validate_json(capsys.readouterr().out)
        assert run(["bench", server.url, *words], {}) == 0
    assert report.conditions.arrivals_per_second == 40
    assert [(cell.kind, cell.requests, cell.failed) for cell in report.cells] == [
        *(("code", 6, 0), ("prose", 6, 0))
    ]
    assert report.schema_version == 3
    for cell in report.cells:
        load = [sample for sample in report.samples if sample.kind == cell.kind]
        assert {sample.concurrency for sample in load} == {cell.concurrency}
        arrivals = draw_arrivals(6, rate=40, seed=("code", "prose").index(cell.kind))
        assert all(
            sample.began_at >= arrival for sample, arrival in zip(load, arrivals, strict=True)
        )
        assert cell.seconds == max(sample.began_at + sample.seconds for sample in load)
        assert cell.tokens_per_second == pytest.approx(30 / cell.seconds)
        assert cell.first_token is not None
        assert cell.per_token is not None
    assert "at 40 requests per second, with up to " in capsys.readouterr().out
    assert "<svg" in (here / "it.html").read_text()


def test_people_see_every_cell_as_it_is_done(capsys: Capture) -> None:
    with run_stream_server(answer) as server:
        assert run(["bench", server.url, *FEW], {}) == 0
    shown = capsys.readouterr()
    assert shown.err.count("tokens/s") == 2
    assert "code" in shown.out


async def stream_behind_gate(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as the engine behind the gate."""
    listed = scope["method"] == "GET"
    if not listed:
        await read_all(receive)
    events = write_events(ROLE, say("x"), say("yz"), STOP, count(3, 5), "[DONE]")
    body = json.dumps({"data": [{"id": "the-model"}]}).encode() if listed else events
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for line in body.splitlines(keepends=True):
        await send({"type": "http.response.body", "body": line, "more_body": True})
        await asyncio.sleep(0.001)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def test_our_own_server_is_measured_cold_through_its_gate(here: Path, capsys: Capture) -> None:
    with serve(make_gate(here, stream_behind_gate)) as port:
        assert run(["bench", f"http://127.0.0.1:{port}", *FEW, "--json"], {}) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["conditions"]["prefix_cache"] == "cold"
    assert [cell["failed"] for cell in report["cells"]] == [0, 0]


def test_a_server_that_forbids_salts_is_measured_with_its_cache_as_it_is(capsys: Capture) -> None:
    with run_stream_server(refuse_salt) as server:
        assert run(["bench", server.url, *FEW, "--json"], {}) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["conditions"]["prefix_cache"] == "shared"
    assert [cell["failed"] for cell in report["cells"]] == [0, 0]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("bench",), 1, "no run is live"),
        (("bench", "mine"), 1, "no run mine is live"),
        (("bench", "http://127.0.0.1:9", "--html", "no/it.html"), 1, "there is no folder"),
        (("bench", "http://127.0.0.1:9"), 3, "no answer from http://127.0.0.1:9"),
        (("bench", "http://127.0.0.1:9", *FEW, "--rate", "2"), 2, "cannot be combined"),
        (
            ("bench", "http://127.0.0.1:9", "--workload", "agent", "--rate", "2"),
            2,
            "--rate does not apply to tasks",
        ),
        (("bench", "http://", *FEW), 1, "is not the address of a server"),
        (("compare", "nothing/here"), 1, "nothing/here"),
        (("tune", "nothing/here"), 1, "nothing/here"),
        (("tune", "nothing/here", "--goal", "ttft<1s@p95"), 2, "not about the time per token"),
        (("tune", "nothing/here", "--starts", "2"), 2, "--starts 2 is too few"),
        (("tune", "nothing/here", "--methods", "ngrm"), 2, "unknown method 'ngrm'"),
        (("tune", "nothing/here", "--methods", "ngram=x"), 2, "no drafter that ngram could use"),
        (("tune", "nothing/here", "--workload", "agent-8k"), 2, "not tasks"),
        (("tune", "nothing/here", "--save", "no/plan.json"), 1, "there is no folder"),
    ],
)
def test_what_cannot_be_measured_is_told(
    words: tuple[str, ...], code: int, told: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(list(words), {}) == code
    shown = capsys.readouterr().err
    assert told in shown
    assert "hint:" in shown


PARSER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.mark.parametrize(
    ("words", "concurrencies", "tool_choice"),
    [
        ((), (1,), "none"),
        (("--", "--no-enable-auto-tool-choice", *PARSER[1:]), (1,), "none"),
        (("--", *PARSER[1:]), (1,), "auto"),
        (("--", *PARSER), (1,), "auto"),
        (("--tool-choice", "named", "--concurrency", "1", "4", "--", *PARSER), [1, 4], "named"),
    ],
)
def test_compare_asks_one_task_at_a_time_and_for_calls_that_both_engines_parse(
    words: tuple[str, ...],
    concurrencies: Any,
    tool_choice: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[Comparing] = []

    def stop(comparing: Comparing, _: Conditions) -> None:
        runs.append(comparing)
        raise InvalidInputError("enough", hint="none")

    monkeypatch.setattr(Comparing, "run", stop)
    monkeypatch.setattr(
        "slipstream.cli.measuring.compare.WeightsOnDisk.localize", lambda _, plan: plan
    )
    options = (*write_pair(here), "--context", "2048", "--workload", "agent")
    assert run(["compare", *options, *words], {}) == 1
    (comparing,) = runs
    assert comparing.bench.workload.kinds == ("agent-2k",)
    assert (comparing.bench.concurrencies, comparing.bench.tool_choice) == (
        concurrencies,
        tool_choice,
    )
    assert [arm.plan.sequences for arm in comparing.arms] == [max(concurrencies)] * 2


@pytest.mark.parametrize("verb", ["compare", "tune"])
def test_a_plan_without_drafts_has_nothing_to_compare_or_tune(
    verb: str, here: Path, capsys: Capture
) -> None:
    write_pair(here)
    assert run([verb, "target", "--no-speculation"], {}) == 1
    assert f"there is nothing to {verb}" in capsys.readouterr().err
