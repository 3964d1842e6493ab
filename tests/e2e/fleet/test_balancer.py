"""HAProxy for real, before gates without engines: who passes, which group, and what is lost."""

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

from slipstream.fleet.balancer.control import BalancerStatus, find_keeper, is_running, read_state
from slipstream.fleet.balancer.deploying import Action, BalancerRequest
from slipstream.fleet.balancer.haproxy import render_balancer
from slipstream.fleet.machines.commands import name_request
from slipstream.fleet.record import find_folder
from slipstream.fleet.trust import Authority, make_authority
from slipstream.serving.access.keys import make_key, revoke_key
from tests.e2e.fleet.stub_gates import PIECES, StubGate
from tests.unit.fleet.balancer.balancers import plan_balancer

NAMES = ("a", "b", "c")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
IS_ABSENT = shutil.which("haproxy", path=PATH) is None
NOW = datetime.now(UTC)
CHAT = "/v1/chat/completions"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(IS_ABSENT, reason="no haproxy here: scripts/bootstrap"),
]


@dataclass
class Site:
    """A load balancer that runs, with the gates behind it."""

    home: Path
    port: int
    gates: dict[str, StubGate]
    authority: Authority
    key: str

    @property
    def fleet(self) -> Path:
        return self.home / find_folder("lab")

    @property
    def folder(self) -> Path:
        return self.fleet / "balancer"

    def command(self, action: Action, group: str | None = None) -> BalancerStatus:
        """Have this machine do something, as a control machine does over SSH."""
        request = BalancerRequest(fleet="lab", action=action, group=group)
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", *name_request(request)],
            input=request.model_dump_json(),
            env={**os.environ, "HOME": str(self.home), "PATH": PATH},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return BalancerStatus.model_validate_json(done.stdout)

    def are_all_open(self) -> bool:
        return all(one.state == "open" for one in read_state(self.folder).groups)

    def open_client(self, **more: Any) -> httpx.AsyncClient:
        trust = ssl.create_default_context(cadata=self.authority.pem.decode())
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(
            base_url=f"https://{more.pop('host', 'localhost')}:{self.port}",
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
    made = Site(home, find_port(), gates, authority, "")
    made.folder.mkdir(parents=True, mode=0o700)
    made.key = make_key(made.fleet / "keys.json", "alice", now=NOW, expires=None).secret
    balancer = plan_balancer(
        *NAMES,
        plain=("c",),
        port=made.port,
        ports=tuple(gate.port for gate in gates.values()),
        address="127.0.0.1",
    )
    (made.fleet / "tls").mkdir()
    (made.fleet / "tls" / "ca.pem").write_bytes(authority.pem)
    for file in ("balancer.pem", "machine.pem"):
        issued = authority.issue(["spark-1", "localhost", "127.0.0.1", "::1"], NOW)
        (made.fleet / "tls" / file).write_bytes(issued.certificate)
        (made.fleet / "tls" / f"{file}.key").write_bytes(issued.key)
    (made.folder / "haproxy.cfg").write_text(render_balancer(balancer))
    try:
        for gate in gates.values():
            gate.start()
        made.command("start")
        wait_until(made.are_all_open)
        yield made
    finally:
        made.command("stop")
        for gate in gates.values():
            gate.kill()


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


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
                answer = await client.post(CHAT, json=body)
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
        answers = [site.ask("POST", CHAT, json={**chat, **more}) for _ in range(4)]
        assert {find_model(answer.text) for answer in answers} == {"c"}


def test_a_group_is_closed_and_opened_under_load_without_a_failed_request(site: Site) -> None:
    def change() -> None:
        closed = site.command("close", "a").find("a")
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


def test_the_group_with_the_fewest_requests_gets_the_next_one(site: Site) -> None:
    """Two groups are kept busy by slow streams, so every other request goes to the third."""

    async def ask() -> list[str]:
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        slow = {**chat, "stream": True, "seconds": 3}
        async with site.open_client() as client:
            busy = [asyncio.create_task(client.post(CHAT, json=slow)) for _ in range(8)]
            await asyncio.sleep(0.8)
            under_way = {name: gate.count_under_way() for name, gate in site.gates.items()}
            assert sorted(under_way.values()) == [2, 3, 3]
            least = min(under_way, key=lambda name: under_way[name])
            found = [find_model((await client.post(CHAT, json=chat)).text) for _ in range(4)]
            await asyncio.gather(*busy)
        return [*found, least]

    wait_until(site.are_all_open)
    *found, least = asyncio.run(ask())
    assert set(found) == {least}


def test_a_session_stays_with_its_group_and_only_those_of_a_closed_one_move(site: Site) -> None:
    def ask(session: int) -> str:
        more = {"headers": {"x-session-id": f"agent-{session}"}}
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        return find_model(site.ask("POST", CHAT, json=body, **more).text)

    first = {session: ask(session) for session in range(12)}
    assert len(set(first.values())) > 1
    assert {session: ask(session) for session in first} == first
    closed = first[0]
    site.command("close", closed)
    second = {session: ask(session) for session in first}
    assert closed not in second.values()
    assert {one for one in first if first[one] != second[one]} == {
        one for one in first if first[one] == closed
    }
    site.command("open", closed)
    wait_until(site.are_all_open)
    assert {session: ask(session) for session in first} == first


def test_a_session_whose_group_died_is_answered_by_another(site: Site) -> None:
    more = {"headers": {"x-session-id": "agent-1"}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    own = find_model(site.ask("POST", CHAT, json=body, **more).text)
    site.gates[own].kill()
    answers = [site.ask("POST", CHAT, json=body, **more) for _ in range(4)]
    site.gates[own].start()
    assert {answer.status_code for answer in answers} == {200}
    assert own not in {find_model(answer.text) for answer in answers}
    wait_until(site.are_all_open)


def test_a_stream_arrives_piece_by_piece(site: Site) -> None:
    async def ask() -> list[float]:
        body = {"model": "m", "messages": [], "stream": True, "seconds": 2}
        async with site.open_client() as client, client.stream("POST", CHAT, json=body) as answer:
            return [time.monotonic() async for line in answer.aiter_lines() if line]

    came = asyncio.run(ask())
    assert len(came) == PIECES + 1
    # Each piece is written two fifths of a second after the one before.
    assert came[1] - came[0] > 0.2
    assert came[-1] - came[0] > 1.5


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_clients_come_by_either_version_of_ip(host: str, site: Site) -> None:
    async def ask() -> int:
        async with site.open_client(host=host) as client:
            return (await client.get("/v1/models")).status_code

    assert asyncio.run(ask()) == 200


def test_killed_haproxy_is_started_again(site: Site) -> None:
    keeper = find_keeper(site.folder)
    assert keeper is not None
    (haproxy,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(int(haproxy), signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{keeper}/task/{keeper}/children").read_text() != f"{haproxy} ")
    wait_until(lambda: find_keeper(site.folder) == keeper and is_running(site.folder))
    wait_until(site.are_all_open)
    assert site.ask("GET", "/v1/models").status_code == 200
    assert (site.folder / "haproxy.log").stat().st_size > 0


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


def test_what_is_closed_stays_closed_when_haproxy_takes_another_file(site: Site) -> None:
    keeper = find_keeper(site.folder)
    site.command("close", "c")

    def change() -> None:
        site.command("start")
        time.sleep(1)

    assert asyncio.run(load(site, change))[1] == []
    assert find_keeper(site.folder) == keeper
    assert {one.group: one.state for one in site.command("state").groups} == {
        "a": "open",
        "b": "open",
        "c": "closed",
    }
    site.command("open", "c")
    wait_until(site.are_all_open)


def test_a_keeper_that_is_killed_takes_haproxy_along(site: Site) -> None:
    keeper = find_keeper(site.folder)
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not is_running(site.folder))
    assert find_keeper(site.folder) is None
    site.command("start")
    wait_until(site.are_all_open)
    assert site.ask("GET", "/v1/models").status_code == 200


def test_a_file_that_haproxy_refuses_changes_nothing(site: Site) -> None:
    file = site.folder / "haproxy.cfg"
    kept = file.read_text()
    file.write_text(kept.replace("balance leastconn", "balance wrongly"))
    with pytest.raises(AssertionError, match="HAProxy refuses its configuration"):
        site.command("start")
    file.write_text(kept)
    assert site.ask("GET", "/v1/models").status_code == 200
