"""The real engine with a certificate: reached, guarded and renewed, and without secrets."""

import json
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from slipstream.serving.access.tls import TlsCertificate
from tests.engine.secured.conftest import Secured
from tests.unit.serving.access.certificates import make_pair

pytestmark = pytest.mark.engine

# Health checks that fail for this long end an engine.
NOTICED_WITHIN_SECONDS = 15


def test_it_is_ready_and_the_next_command_works_as_it_is_printed(secured: Secured) -> None:
    told = json.loads(secured.service.command("status", "--json").stdout)["runs"][0]
    assert (told["state"], told["url"]) == ("ready", f"https://127.0.0.1:{secured.service.port}")
    command = shlex.split(told["next_command"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    sys.stdout.write(f"\n{told['next_command']}\n{done.stdout[:200]}")
    assert json.loads(done.stdout)["data"][0]["id"] == secured.service.target.name


def test_the_gate_is_there_under_tls(secured: Secured) -> None:
    assert secured.ask("/readyz").status_code == 200
    assert secured.ask("/invocations").status_code == 404
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{secured.service.port}/readyz", timeout=10)
    context = TlsCertificate(secured.pair.file, secured.pair.key).pin()
    with (
        socket.create_connection(("127.0.0.1", secured.service.port), timeout=30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: e\r\nX-A: " + b"a" * 100_000)
        assert connection.recv(4096).startswith(b"HTTP/1.1 431")


def test_the_plan_named_the_parser_by_the_template(secured: Secured) -> None:
    _, run = secured.service.newest
    parser = run.plan.settings.tool_parser
    assert parser is not None
    assert (parser.value, parser.source) == ("llama3_json", "checkpoint")


def test_the_engine_has_no_secrets(secured: Secured) -> None:
    """Its leader is ours, and has what its successor will need."""
    _, run = secured.service.newest
    assert run.engine is not None
    for pid in set(secured.service.find_processes().values()) - {run.engine.pid}:
        names = {line.partition("=")[0] for line in _read_environment(pid)}
        assert names.isdisjoint({"HF_TOKEN", "AWS_REGION"})


def test_a_renewed_certificate_counts_without_a_restart_and_a_run_is_measured(
    secured: Secured,
) -> None:
    service, before = secured.service, secured.read_certificate()
    renewed = make_pair(service.home / "renewed", "localhost")
    # In place: vLLM watches the files and not their names.
    secured.pair.key.write_bytes(renewed.key.read_bytes())
    secured.pair.file.write_bytes(renewed.pem)
    took = service.wait_for(lambda: secured.read_certificate() != before, 60)
    began = time.monotonic()
    words = ("--prompts", "1", "--max-tokens", "8", "--concurrency", "1", "--json")
    report = json.loads(service.command("bench", *words).stdout)
    assert all(sample["error"] is None for sample in report["samples"])
    time.sleep(max(0.0, began + NOTICED_WITHIN_SECONDS - time.monotonic()))
    _, run = service.newest
    sys.stdout.write(f"\nrenewed in {took:.1f} s; {run.state}, {run.restarts} restarts")
    assert (run.state, run.restarts) == ("ready", 0)
    assert secured.ask("/readyz").status_code == 200


def _read_environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
