"""The steered engine: its ledger is vLLM's own count, and its draft length is ours to choose."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import read_engine_counts
from slipstream.planning.settings.patches import (
    CPU_SAMPLING,
    CPU_TOP_K,
    DFLASH_NO_DRAFTS,
    DFLASH_SURVIVAL,
)
from slipstream.planning.settings.patches import VARIABLE as PATCHES
from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.live_view import LiveView
from tests.engine.arms.launch import run_engine_script
from tests.engine.prometheus import needs_prometheus, run_prometheus
from tests.engine.service import Service
from tests.unit.deploy.observability_files import list_panel_queries, list_recordings, list_rules

pytestmark = [pytest.mark.engine, pytest.mark.beside]

CODE = "Write a Python function that returns the n-th Fibonacci number, with a docstring."
SCRAPES = 3
RECORDED_RATE = "fleet_group:vllm_inter_token_latency_seconds:p95_5m"
STORY = "Tell me a short story about a lighthouse."


@pytest.fixture(scope="module")
def patched(
    target: Path, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return what an engine with the drafter's patches does, and without each."""
    names = (CPU_SAMPLING, CPU_TOP_K, DFLASH_NO_DRAFTS, DFLASH_SURVIVAL)
    engine = {
        "model": str(target),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 2,
        "kv_cache_memory_bytes": 1 << 28,
        "enable_prefix_caching": False,
        "speculative_config": {
            "method": "dflash",
            "model": str(SHIPPED_DRAFTER),
            "num_speculative_tokens": 7,
            "num_speculative_tokens_per_batch_size": [[1, 1, 0], [2, 2, 7]],
        },
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(PATCHES, ",".join(names))
        job = {"engine": engine, "prompts": prompts}
        folder = tmp_path_factory.mktemp("patched")
        found: dict[str, Any] = run_engine_script("no_drafts.py", job, folder)
        return found


def test_a_step_without_drafts_leaves_the_drafters_pass_out(patched: dict[str, Any]) -> None:
    assert patched["patched"]
    assert patched["alone"]["passes"] == 0
    assert patched["together"]["passes"] > 0
    assert patched["alone_unpatched"]["passes"] > 0
    texts = [patched[name]["texts"][0] for name in ("alone", "together", "alone_unpatched")]
    assert texts[0] == texts[1] == texts[2]


def test_a_draft_comes_with_its_chances_only_with_the_patch(patched: dict[str, Any]) -> None:
    drafts = [rows for rows in patched["chances"] if rows is not None and len(rows) == 2]
    assert drafts
    for row in (row for rows in drafts for row in rows):
        assert len(row) == 7
        assert all(0 < chance <= 1 for chance in row)
    assert not any(patched["chances_unpatched"])


@pytest.fixture(scope="module")
def service(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("steered"), target)
    try:
        running.serve("--users", "4")
        yield running
    finally:
        running.end()


def chat(service: Service, text: str, **more: Any) -> str:
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 40, "temperature": 0}
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=asked | more, timeout=300)
    assert answer.status_code == httpx.codes.OK, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def leave_early(service: Service) -> None:
    asked = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 400, "stream": True}
    with httpx.stream(
        "POST", f"{service.url}/v1/chat/completions", json=asked, timeout=300
    ) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number > 12:
                return


def read_state(service: Service) -> dict[str, Any]:
    status = json.loads(service.command("status", service.newest[1].id, "--json").stdout)
    state: dict[str, Any] = status["steering"][0]
    return state


def read_ledger(service: Service) -> list[dict[str, Any]]:
    folder, _ = service.newest
    return [json.loads(line) for line in folder.ledger.read_text().splitlines()]


def test_the_ledger_of_every_api_is_the_engines_own_count(service: Service) -> None:
    chat(service, CODE)
    chat(service, STORY, temperature=0.7, seed=1)
    leave_early(service)
    message = {"model": service.target.name, "max_tokens": 24}
    said = {"messages": [{"role": "user", "content": STORY}]}
    for path, body in (
        ("/v1/messages", message | said),
        ("/v1/responses", {"model": service.target.name, "input": CODE, "max_output_tokens": 24}),
        ("/v1/completions", message | {"prompt": "Once upon a time"}),
    ):
        answer = httpx.post(f"{service.url}{path}", json=body, timeout=300)
        assert answer.status_code == httpx.codes.OK, answer.text
    service.wait_for(lambda: read_state(service)["running"] == 0, 60)
    time.sleep(2)  # The state is reported once a second.
    lines = [line for line in read_ledger(service) if line["key"] == "anyone"]
    assert [(line["route"], line["kind"], line["ended"]) for line in lines] == [
        ("chat", "code", lines[0]["ended"]),
        ("chat", "prose", lines[1]["ended"]),
        ("chat", "prose", "aborted"),
        ("messages", "prose", lines[3]["ended"]),
        ("responses", "code", lines[4]["ended"]),
        ("completions", "prose", lines[5]["ended"]),
    ]
    kinds = read_state(service)["kinds"].values()
    counted = read_engine_counts(Endpoint(service.url))
    assert sum(kind["drafts"] + kind["copies"] for kind in kinds) == counted.drafts
    assert sum(kind["drafted"] + kind["copied"] for kind in kinds) == counted.drafted
    own = sum(sum(kind["accepted"]) for kind in kinds)
    assert own + sum(kind["copied_accepted"] for kind in kinds) == counted.accepted
    for name in ("drafts", "drafted", "copies", "copied", "copied_accepted"):
        listed = sum(line[name] for line in read_ledger(service))
        assert listed == sum(kind[name] for kind in kinds)


def test_a_request_turns_its_own_drafts_off_and_keeps_its_text(service: Service) -> None:
    asked = {"messages": [{"role": "user", "content": CODE}], "max_tokens": 40, "temperature": 0}
    url, off = f"{service.url}/v1/chat/completions", {"X-Slipstream-Drafts": "off"}
    answer = httpx.post(url, json=asked, headers=off, timeout=300)
    assert answer.json()["choices"][0]["message"]["content"] == chat(service, CODE)

    def find_line() -> list[dict[str, Any]]:
        name = answer.headers["x-request-id"]
        return [line for line in read_ledger(service) if line["id"] == name]

    service.wait_for(lambda: bool(find_line()), 60)
    (plain,) = find_line()
    assert plain["tokens"] == plain["steps"] > 0
    assert (plain["drafts"], plain["copies"]) == (0, 0)


def test_an_order_bounds_the_drafts_and_changes_no_text(service: Service) -> None:
    before = chat(service, CODE)
    _, run = service.newest
    service.command("swap", run.id, "--k", "0")
    service.wait_for(lambda: read_state(service)["most"] == 0, 60)
    time.sleep(1.1)
    drafts = sum(kind["drafts"] for kind in read_state(service)["kinds"].values())
    assert chat(service, CODE) == before
    time.sleep(2)
    state = read_state(service)
    assert sum(kind["drafts"] for kind in state["kinds"].values()) <= drafts + 1
    assert state["draft_length"] == 0
    service.command("swap", run.id, "--k", "any")
    service.wait_for(lambda: read_state(service)["most"] is None, 60)
    assert chat(service, CODE) == before


def test_the_screen_and_the_page_show_what_the_core_reports(service: Service) -> None:
    chat(service, CODE)
    time.sleep(2)
    view = LiveView.model_validate_json(service.command("top", "--json").stdout)
    state = httpx.get(f"{service.url}/slipstream/state").json()
    told = read_state(service)
    assert view.steering is not None
    assert view.engine is not None
    assert view.steering.kinds["code"].drafts == told["kinds"]["code"]["drafts"]
    kinds = view.steering.kinds.values()
    assert view.engine.drafts == sum(one.drafts + one.copies for one in kinds)
    assert state["steering"]["kinds"]["code"]["accepted"] == told["kinds"]["code"]["accepted"]
    assert {"core", "API server"} <= {one.role for one in view.processes if one.bytes}
    assert httpx.get(f"{service.url}/slipstream").text.startswith("<!DOCTYPE html>")
    elsewhere = {"Host": f"rebound.example:{service.port}"}
    assert httpx.get(f"{service.url}/slipstream", headers=elsewhere).status_code == 404


@needs_prometheus
def test_prometheus_answers_every_query_of_ours_with_data(service: Service, tmp_path: Path) -> None:
    leave_early(service)
    assert httpx.get(f"{service.url}/tokenize").status_code == 404  # a refusal
    # A ratio is recorded only while there is something to divide by.
    queries = {
        title: query for title, query in list_panel_queries().items() if "ratio_rate" not in query
    }
    with run_prometheus(tmp_path, f"127.0.0.1:{service.port}") as prometheus:
        service.wait_for(lambda: prometheus.count_scrapes() >= SCRAPES, 60)
        service.wait_for(lambda: "unknown" not in prometheus.list_faults().values(), 60)
        # Rates are recorded once there are two scrapes, all of them in the same round.
        recorded = list(list_recordings())
        service.wait_for(lambda: bool(prometheus.query(RECORDED_RATE)), 60)
        assert RECORDED_RATE in recorded
        assert [title for title, query in queries.items() if not prometheus.query(query)] == []
        assert prometheus.list_faults() == dict.fromkeys([*list_rules(), *recorded])


def test_what_the_core_did_last_outlives_it(service: Service) -> None:
    chat(service, STORY)
    os.kill(service.find_processes()["core"], 9)
    folder, run = service.newest
    service.wait_for(lambda: folder.earlier_flight.exists())
    told = json.loads(service.command("doctor", run.id, "--json", check=False).stdout)
    assert told["flight"]["steps"] > 10
    assert told["flight"]["running"] == 1
    service.wait_for(service.is_ready)
