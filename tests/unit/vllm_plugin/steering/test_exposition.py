"""The core's report is on /metrics beside vLLM's and the gate's, with bounded labels."""

import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.vllm_plugin.steering.state_reading import FRESH_SECONDS
from tests.unit.vllm_plugin.gate.answers.test_metrics import serve_metrics
from tests.unit.vllm_plugin.gate.pieces import make_gate
from tests.unit.vllm_plugin.gate.test_connections import Living, serve_as_vllm
from tests.unit.vllm_plugin.steering.reports import make_report, write_report

OURS = ("slipstream_steering_", "slipstream_ledger_")
GAUGES = {
    ("slipstream_steering_draft_length",): 5,
    ("slipstream_steering_longest_draft_length",): 7,
    ("slipstream_steering_steers",): 1,
    ("slipstream_steering_plain_pays",): 0,
    ("slipstream_steering_step_seconds",): 0.061,
    ("slipstream_steering_tokens_per_second",): 55.2,
}
PROSE = {
    ("slipstream_ledger_requests_total", "prose"): 3,
    ("slipstream_ledger_tokens_total", "prose"): 900,
    ("slipstream_ledger_steps_total", "prose"): 700,
    ("slipstream_ledger_drafts_total", "prose"): 690,
    ("slipstream_ledger_drafted_tokens_total", "prose"): 3450,
    ("slipstream_ledger_accepted_tokens_total", "prose", "1"): 300,
    ("slipstream_ledger_accepted_tokens_total", "prose", "2"): 90,
    ("slipstream_ledger_accepted_tokens_total", "prose", "3"): 20,
    ("slipstream_ledger_accepted_tokens_total", "prose", "4"): 5,
    ("slipstream_ledger_accepted_tokens_total", "prose", "5"): 0,
}


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Ask for /metrics, and return what is not the gate's own."""
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith(OURS)
    }


def test_every_scrape_shows_the_report_of_that_moment(tmp_path: Path) -> None:
    file = tmp_path / "steering.json"
    gate = make_gate(tmp_path, serve_metrics(Living()), steering_file=file)
    prose = {"prose": make_report()["kinds"]["prose"]}
    with serve_as_vllm(gate) as port:
        assert scrape(port) == {}
        write_report(file, kinds=prose)
        assert scrape(port) == GAUGES | PROSE
        write_report(file, kinds=prose, draft_length=0, step_seconds=None, steers=False)
        changed = scrape(port)
        assert changed[("slipstream_steering_draft_length",)] == 0
        assert changed[("slipstream_steering_steers",)] == 0
        assert ("slipstream_steering_step_seconds",) not in changed
        write_report(file, kinds=prose, at=time.time() - FRESH_SECONDS - 5)
        assert scrape(port) == {}
        file.write_text("{")
        assert scrape(port) == {}


@pytest.mark.parametrize("name", ['"} 1\nforged 1', "code\n", "anything"])
def test_no_file_makes_a_label(tmp_path: Path, name: str) -> None:
    counts = make_report()["kinds"]["code"] | {"accepted": [1] * 500}
    file = write_report(tmp_path / "steering.json", kinds={name: counts, "code": counts})
    gate = make_gate(tmp_path, serve_metrics(Living()), steering_file=file)
    with serve_as_vllm(gate) as port:
        shown = scrape(port)
        assert "forged" not in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    labels = {labels[1:] for labels in shown if len(labels) > 1}
    assert labels == {("code",), *(("code", str(position)) for position in range(1, 65))}
