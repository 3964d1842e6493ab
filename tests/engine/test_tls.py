"""The real engine with a certificate: reached, guarded and renewed, and without secrets."""

import json
import shlex
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from slipstream.measuring.bench import Bench
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.workloads import load_workload
from slipstream.serving.access.tls import Certificate
from tests.engine.service import Service
from tests.unit.serving.access.certificates import Pair, make_pair

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Secured:
    """A served run, and the certificate that it was started with."""

    service: Service
    pair: Pair

    def ask(self, path: str) -> httpx.Response:
        context = Certificate(self.pair.file, self.pair.key).pin()
        with httpx.Client(verify=context, trust_env=False, timeout=30) as client:
            return client.get(f"https://127.0.0.1:{self.service.port}{path}")

    def read_certificate(self) -> str:
        return ssl.get_server_certificate(("127.0.0.1", self.service.port))


@pytest.fixture(scope="module")
def secured(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    pair = make_pair(home / "tls")
    service = Service(home, target, environment={"HF_TOKEN": "hf_secret", "AWS_REGION": "x"})
    words = ("--no-speculation", "--context", "2048", "--port", str(service.port), "--detach")
    engine = ("--enforce-eager", *pair.flags, "--enable-ssl-refresh")
    calls = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    cached = ("--enable-prompt-tokens-details",)
    service.command("serve", str(target), *words, "--", *engine, *calls, *cached)
    yield Secured(service, pair)
    service.end()


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
    context = Certificate(secured.pair.file, secured.pair.key).pin()
    with (
        socket.create_connection(("127.0.0.1", secured.service.port), timeout=30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: e\r\nX-A: " + b"a" * 100_000)
        assert connection.recv(4096).startswith(b"HTTP/1.1 431")


def test_the_engine_has_no_secrets(secured: Secured) -> None:
    """Its leader is ours, and has what its successor will need."""
    _, run = secured.service.newest
    assert run.engine is not None
    for pid in set(secured.service.find_processes().values()) - {run.engine.pid}:
        names = {line.partition("=")[0] for line in _read_environment(pid)}
        assert names.isdisjoint({"HF_TOKEN", "AWS_REGION"})


def test_a_run_is_measured_over_tls(secured: Secured) -> None:
    words = ("--prompts", "1", "--max-tokens", "8", "--concurrency", "1", "--json")
    report = json.loads(secured.service.command("bench", *words).stdout)
    assert all(sample["error"] is None for sample in report["samples"])


def test_the_turns_of_a_task_find_their_earlier_ones_in_the_cache_and_call_tools(
    secured: Secured,
) -> None:
    certificate = Certificate(secured.pair.file, secured.pair.key)
    endpoint = Endpoint(f"https://127.0.0.1:{secured.service.port}", certificate=certificate)
    workload = load_workload(["agent"], most_a_kind=1, context=2048)
    (cell,), samples = Bench(workload, (1,), tool_choice="named").measure(endpoint)
    assert [sample.error for sample in samples] == [None] * 5
    assert cell.tasks is not None
    assert cell.tasks.calls == {"parsed": 4}
    shares = [turn.cached_share for turn in cell.tasks.turns]
    sys.stdout.write(f"\n{cell.tasks}")
    assert shares[0] == 0
    assert min(share or 0 for share in shares[1:]) > 0
    # A probe of the supervisor may be counted along.
    assert cell.cache_hit_share == pytest.approx(cell.tasks.cached_share, abs=0.05)


def test_a_renewed_certificate_counts_without_a_restart(secured: Secured) -> None:
    service, before = secured.service, secured.read_certificate()
    renewed = make_pair(service.home / "renewed")
    # In place: vLLM watches the files and not their names.
    secured.pair.key.write_bytes(renewed.key.read_bytes())
    secured.pair.file.write_bytes(renewed.pem)
    took = service.wait_for(lambda: secured.read_certificate() != before, 60)
    time.sleep(15)
    _, run = service.newest
    sys.stdout.write(f"\nrenewed in {took:.1f} s; {run.state}, {run.restarts} restarts")
    assert (run.state, run.restarts) == ("ready", 0)
    assert secured.ask("/readyz").status_code == 200


def _read_environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
