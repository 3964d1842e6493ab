"""Debian's Prometheus as a child process, which scrapes one server every second."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.serving.supervision.engine_process import choose_port
from tests.unit.deploy.observability_files import write_config

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus: scripts/bootstrap fetches Debian's"
)


class Prometheus:
    """A Prometheus with the shipped configuration and rules."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

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

    def list_faults(self) -> dict[str, Any]:
        """Return, by rule, what is wrong with the last judgement of each."""
        groups = self._client.get("/api/v1/rules").json()["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        return {
            name: None if rule["health"] == "ok" else rule.get("lastError", rule["health"])
            for name, rule in rules.items()
        }


@contextmanager
def run_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Run it until the block ends."""
    port = choose_port(None)
    config = write_config(folder, key="none", target=target, interval="1s")
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    ]
    base = f"http://127.0.0.1:{port}"
    with (
        subprocess.Popen(command, cwd=folder) as process,
        httpx.Client(base_url=base, timeout=10) as client,
    ):
        try:
            yield Prometheus(client)
        finally:
            process.kill()
