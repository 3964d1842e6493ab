"""The core's report is on /metrics beside vLLM's and the gate's, with bounded labels."""

import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from slipstream.steering.state import FRESH_SECONDS
from tests.unit.vllm_plugin.gate.answers.test_metrics import serve_metrics
from tests.unit.vllm_plugin.gate.pieces import make_gate
from tests.unit.vllm_plugin.gate.test_connections import Living, serve_as_vllm
from tests.unit.vllm_plugin.steering.reports import make_report, make_state

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
    ("slipstream_ledger_copied_tokens_total", "prose"): 120,
    ("slipstream_ledger_copied_accepted_tokens_total", "prose"): 80,
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
    gate = make_gate(tmp_path, serve_metrics(Living()))
    prose = {"prose": make_report()["kinds"]["prose"]}
    with serve_as_vllm(gate) as port:
        assert scrape(port) == {}
        gate.run.hear(make_state(kinds=prose))
        assert scrape(port) == GAUGES | PROSE
        gate.run.hear(make_state(kinds=prose, draft_length=0, step_seconds=None, steers=False))
        changed = scrape(port)
        assert changed[("slipstream_steering_draft_length",)] == 0
        assert changed[("slipstream_steering_steers",)] == 0
        assert ("slipstream_steering_step_seconds",) not in changed
        gate.run.hear(make_state(kinds=prose, at=time.time() - FRESH_SECONDS - 5))
        assert scrape(port) == {}
