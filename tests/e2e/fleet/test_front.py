"""The front and the router for real, before gates without engines: who passes, and what is lost."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.fleet.front.control import FrontState, read_state
from slipstream.fleet.front.haproxy import render_front
from slipstream.fleet.front.service import render_supervision
from slipstream.fleet.record import find_folder
from slipstream.fleet.trust.authority import Authority, make_authority
from slipstream.serving.access.keys import make_key, revoke_key
from tests.e2e.fleet.stub_gates import StubGate
from tests.unit.fleet.front.routers import plan_router

NAMES = ("a", "b", "c")
PROGRAMS = ("haproxy", "vllm-router", "supervisord")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
ABSENT = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
NOW = datetime.now(UTC)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(ABSENT), reason=f"no {', '.join(ABSENT)} here: scripts/bootstrap"),
]


@dataclass
class Site:
    """A front that runs, with the gates behind it."""

    home: Path
    port: int
    gates: dict[str, StubGate]
    authority: Authority
    key: str

    @property
    def fleet(self) -> Path:
        return self.home / find_folder("lab")

    def command(self, *words: str) -> str:
        """Run `slipstream fleet front` as a desk does over SSH."""
        argv = [sys.executable, "-m", "slipstream", "fleet", "front", "lab", *words]
        environment = {**os.environ, "HOME": str(self.home), "PATH": PATH}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read_state(self) -> FrontState:
        return read_state(self.fleet / "front")

    def open_client(self, **more: Any) -> httpx.AsyncClient:
        trust = ssl.create_default_context(cadata=self.authority.pem.decode())
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(
            base_url=f"https://localhost:{self.port}",
            **{"verify": trust, "headers": headers, "timeout": 20, "trust_env": False, **more},
        )

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.open_client() as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # A socket's path has 108 bytes at most.
    home = Path(tmp_path_factory.mktemp("f"))
    authority = make_authority(home / "authority", "lab", NOW)
    gates = {
        name: StubGate.make(
            name, home / f"gate-{name}", authority, authority.issue([f"spark-{number}"], NOW)
        )
        for number, name in enumerate(NAMES, start=1)
    }
    made = Site(home, find_ports(), gates, authority, "")
    (made.fleet / "front").mkdir(parents=True, mode=0o700)
    made.key = make_key(made.fleet / "keys.json", "alice", now=NOW, expires=None).secret
    router = plan_router(
        *NAMES,
        plain=("c",),
        port=made.port,
        ports=tuple(gate.port for gate in gates.values()),
        address="127.0.0.1",
    )
    (made.fleet / "tls").mkdir()
    (made.fleet / "tls" / "ca.pem").write_bytes(authority.pem)
    for file in ("front.pem", "machine.pem"):
        issued = authority.issue(["spark-1", "localhost"], NOW)
        (made.fleet / "tls" / file).write_bytes(issued.certificate)
        (made.fleet / "tls" / f"{file}.key").write_bytes(issued.key)
    (made.fleet / "front" / "front.cfg").write_text(render_front(router))
    (made.fleet / "front" / "supervisord.conf").write_text(render_supervision(router))
    try:
        for gate in gates.values():
            gate.start()
        made.command("start")
        wait_until(lambda: made.read_state().router_up)
        yield made
    finally:
        made.command("stop")
        for gate in gates.values():
            gate.kill()


def find_ports() -> int:
    """Find a port for clients with free ones beside it for the router and the legs."""
    for port in range(18300, 30000, 50):
        try:
            for offset in (0, 1, 2, 10, 11, 12):
                socket.create_server(("127.0.0.1", port + offset)).close()
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


def wait_until(condition: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


async def load(
    site: Site, change: Callable[[], None], *, workers: int = 6, most: int = 60
) -> tuple[Counter[str], list[str]]:
    """Ask until something was changed and as many requests again were answered; list failures."""
    answered, failed = Counter[str](), list[str]()
    changing = asyncio.get_running_loop().run_in_executor(None, change)

    async def work(client: httpx.AsyncClient, number: int) -> None:
        while not changing.done() or answered.total() < most:
            stream = (answered.total() + number) % 2 == 0
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            try:
                answer = await client.post("/v1/chat/completions", json=body)
                complete = answer.text.endswith("[DONE]\n\n") or not stream
                if answer.status_code != 200 or not complete:
                    failed.append(f"{answer.status_code} {answer.text[:80]}")
                answered[find_model(answer.text)] += 1
            except httpx.HTTPError as fault:
                failed.append(repr(fault))

    async with site.open_client() as client:
        await asyncio.gather(*(work(client, number) for number in range(workers)))
    await changing
    return answered, failed


def find_model(text: str) -> str:
    return next((name for name in NAMES if f'"model": "{name}"' in text), "?")


def test_only_planned_routes_pass_and_only_with_a_key(site: Site) -> None:
    assert site.ask("GET", "/v1/models").status_code == 200
    stranger = {"headers": {"authorization": "Bearer guessed"}}
    assert site.ask("GET", "/v1/models", **stranger).status_code == 401
    assert site.ask("GET", "/readyz", **stranger).json() == {"state": "ready"}
    closed = ("/add_worker?url=http://x", "/list_workers", "/metrics", "/health", "//v1/models")
    assert {site.ask("POST", path).status_code for path in closed} == {404}
    assert {site.ask("GET", path).status_code for path in closed} == {404}
    assert site.ask("GET", "/v1/chat/completions").status_code == 404


def test_a_gate_lets_in_nobody_without_a_certificate_of_the_fleet(site: Site) -> None:
    trust = ssl.create_default_context(cadata=site.authority.pem.decode())
    trust.check_hostname = False
    with (
        pytest.raises(httpx.HTTPError),
        httpx.Client(verify=trust, trust_env=False) as client,
    ):
        client.get(f"https://127.0.0.1:{site.gates['a'].port}/readyz")


def test_a_key_and_a_body_arrive_by_every_way(site: Site) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/completions": {"prompt": "hi"},
        "/v1/responses": {"input": "hi"},
        "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]},
    }
    for path, body in bodies.items():
        asked = {"model": "m", "cache_salt": path, **body}
        answer = site.ask("POST", path, json=asked)
        assert answer.status_code == 200, answer.text
        gate = site.gates[find_model(answer.text)]
        arrived = gate.read_asked()[-1]
        assert arrived["key"] == f"Bearer {site.key}"
        assert {**asked, **arrived["body"]} == arrived["body"]
        assert "access-control-allow-origin" not in answer.headers


def test_what_speculation_cannot_do_goes_to_the_plain_group(site: Site) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": 'say "min_p": 1'}]}
    for more in ({"min_p": 0.1}, {"logit_bias": {"5": 3}}):
        answers = [
            site.ask("POST", "/v1/chat/completions", json={**chat, **more}) for _ in range(4)
        ]
        assert {find_model(answer.text) for answer in answers} == {"c"}


def test_a_group_is_closed_and_opened_under_load_without_a_failed_request(site: Site) -> None:
    def change() -> None:
        state = FrontState.model_validate_json(site.command("close", "a", "--json"))
        closed = state.find("a")
        assert closed is not None
        assert closed.state == "closed"
        wait_until(lambda: site.gates["a"].count_under_way() == 0)
        before = len(site.gates["a"].read_asked())
        time.sleep(1)
        assert len(site.gates["a"].read_asked()) == before
        site.command("open", "a")

    answered, failed = asyncio.run(load(site, change))
    assert failed == []
    assert set(answered) == {*NAMES}


def test_of_a_killed_group_only_what_was_under_way_is_lost(site: Site) -> None:
    lost = 0

    def change() -> None:
        nonlocal lost
        gate = site.gates["b"]
        wait_until(lambda: gate.count_under_way() > 0)
        gate.kill()
        lost = gate.count_under_way()
        time.sleep(0.5)
        gate.start()

    answered, failed = asyncio.run(load(site, change))
    # One may have reached the gate and not begun.
    assert len(failed) <= lost + 1
    assert {"a", "c"} <= set(answered)


def test_a_group_that_drains_by_itself_refuses_and_another_answers(site: Site) -> None:
    def change() -> None:
        site.gates["a"].become("draining")
        time.sleep(2)
        site.gates["a"].become("ready")

    answered, failed = asyncio.run(load(site, change))
    assert failed == []
    assert {"b", "c"} <= set(answered)


def test_a_killed_router_comes_back_and_the_front_balances_meanwhile(site: Site) -> None:
    supervisor = int((site.fleet / "front" / "supervisord.pid").read_text())
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    (router,) = [
        pid for pid in children if b"haproxy" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(int(router), signal.SIGKILL)
    wait_until(lambda: not site.read_state().router_up, 5)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answers = [site.ask("POST", "/v1/chat/completions", json=body) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    wait_until(lambda: site.read_state().router_up)


def test_keys_are_rotated_without_a_restart(site: Site) -> None:
    file = site.fleet / "keys.json"
    new = make_key(file, "bob", now=NOW, expires=None)
    with_new = {"headers": {"x-api-key": new.secret, "authorization": ""}}
    assert site.ask("GET", "/v1/models", **with_new).status_code == 401
    site.command("keys")
    assert site.ask("GET", "/v1/models", **with_new).status_code == 200
    revoke_key(file, new.key.id)
    site.command("keys")
    assert site.ask("GET", "/v1/models", **with_new).status_code == 401
    assert site.ask("GET", "/v1/models").status_code == 200


def test_what_is_closed_stays_closed_when_the_front_starts_anew(site: Site) -> None:
    site.command("close", "c")
    site.command("start")
    wait_until(lambda: site.read_state().router_up)
    state = FrontState.model_validate_json(site.command("state", "--json"))
    assert {one.group: one.state for one in state.groups} == {
        "a": "open",
        "b": "open",
        "c": "closed",
    }
    site.command("open", "c")
    wait_until(lambda: all(one.state == "open" for one in site.read_state().groups))
