"""The real Prometheus scrapes the real engine, and every query of ours is answered with data."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.serving.supervision.engine_process import choose_port
from tests.engine.gate.gated_server import Gated, wait_until
from tests.unit.deploy.observability_files import list_panel_queries, list_rules, write_config
from tests.unit.vllm_plugin.steering.reports import write_report

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="no prometheus: scripts/bootstrap fetches Debian's",
    ),
]

CHAT = "/v1/chat/completions"
SCRAPES = 4


class Prometheus:
    """A Prometheus that scrapes one server every second."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)

    def query(self, query: str) -> list[Any]:
        """Ask, and return the series that were found."""
        answer = self._client.get("/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        found: list[Any] = answer["data"]["result"]
        return found

    def count_scrapes(self) -> int:
        """Return how many scrapes the server answered."""
        try:
            found = self.query('sum_over_time(up{job="slipstream"}[1h])')
        except (httpx.TransportError, ValueError):
            return 0
        return int(found[0]["value"][1]) if found else 0

    def list_rules(self) -> dict[str, Any]:
        """Return the rules by name, as they were last judged."""
        groups = self._client.get("/api/v1/rules").json()["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@pytest.fixture
def prometheus(gated: Gated, tmp_path: Path) -> Iterator[Prometheus]:
    port = choose_port(None)
    config = write_config(
        tmp_path, key=gated.monitor, target=f"127.0.0.1:{gated.port}", interval="1s"
    )
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    ]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        try:
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.kill()


def ask_for_everything(gated: Gated) -> None:
    """Have the engine stream an answer, and the gate refuse something."""
    body = {"model": "target", "messages": [{"role": "user", "content": "Count to ten."}]}
    asked = {**body, "max_tokens": 16, "stream": True}
    assert gated.ask(CHAT, method="POST", key=gated.attacker, body=asked).status == 200
    assert gated.ask("/nothing").status == 404


def test_every_query_is_answered_with_data(gated: Gated, prometheus: Prometheus) -> None:
    assert gated.settings.steering_file is not None
    ask_for_everything(gated)

    def is_scraped() -> bool:
        write_report(gated.settings.steering_file, at=time.time())
        return prometheus.count_scrapes() >= SCRAPES

    wait_until(is_scraped, within_seconds=60)
    unanswered = [
        title for title, query in list_panel_queries().items() if not prometheus.query(query)
    ]
    assert unanswered == []
    judged = prometheus.list_rules()
    assert set(judged) == set(list_rules())
    faults = {
        name: rule.get("lastError") for name, rule in judged.items() if rule["health"] != "ok"
    }
    assert faults == {}
    gated.settings.steering_file.unlink()
