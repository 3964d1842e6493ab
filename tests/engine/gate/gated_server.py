"""The real engine with the gate before it, and what can be seen of it from outside."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from slipstream.checkpoints import read_checkpoint
from slipstream.hardware import read_host, this_machine
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.access.gate_file import (
    GATE_CLASS,
    GATE_VARIABLE,
    GateLimits,
    GateSettings,
)
from slipstream.serving.access.keys import KeyTerms, make_key
from slipstream.serving.messages import SOCKET, GateCounts
from slipstream.serving.supervision.engine_process import run_engine
from tests.engine.gate.stub_supervisor import StubSupervisor
from tests.engine.gate.wire import Answer, exchange, make_request

SEATS = 8
CONTEXT = 512
LONGEST_ANSWER = 256


@dataclass(frozen=True, slots=True)
class Gated:
    """A server behind its gate, with the keys of two callers."""

    port: int
    folder: Path
    attacker: str
    neighbour: str
    monitor: str
    settings: GateSettings
    arguments: tuple[str, ...]
    supervisor: StubSupervisor

    def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        key: str | None = None,
        body: object = None,
        headers: tuple[str, ...] = (),
    ) -> Answer:
        """Send one request and wait for all of its answer."""
        content = None if body is None else json.dumps(body).encode()
        sent = make_request(target, method=method, key=key, body=content, headers=headers)
        return exchange(self.port, sent)

    def read_counts(self) -> GateCounts:
        """Return what the gate last said is under way."""
        assert self.supervisor.counts is not None
        return self.supervisor.counts

    def read_metric(self, name: str) -> float:
        """Add up a metric of vLLM over its labels."""
        text = self.ask("/metrics", key=self.monitor).body.decode()
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))

    def list_processes(self) -> set[int]:
        """List the API server and every process that it started."""
        session = os.getsid(self.read_counts().pid)
        return {
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _session_of(int(entry.name)) == session
        }


def describe_process(process: int) -> str:
    """Return the command of a process, nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool], *, within_seconds: float) -> float:
    """Wait for a condition and return the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_seconds, "it did not come to pass"
        time.sleep(0.02)
    return time.monotonic() - started


@contextmanager
def probe(gated: Gated) -> Iterator[list[float]]:
    """Ask /livez all the time; yield the seconds that each answer took."""
    over, waits = threading.Event(), [0.0]

    def ask() -> None:
        while not over.wait(0.02):
            began = time.monotonic()
            assert gated.ask("/livez").status == 200
            waits.append(time.monotonic() - began)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield waits
    finally:
        over.set()
        asking.join()


@contextmanager
def run_gated(target: Path, folder: Path) -> Iterator[Gated]:
    """Start the engine with the gate; `folder` gets its settings, keys, counts and log."""
    keys = folder / "keys" / "keys.json"
    attacker, neighbour = (
        make_key(keys, name, now=datetime.now(UTC), expires=None).secret
        for name in ("attacker", "neighbour")
    )
    scraping = KeyTerms(routes=("metrics",))
    now = datetime.now(UTC)
    monitor = make_key(keys, "monitor", now=now, expires=None, terms=scraping).secret
    settings = GateSettings(
        keys_file=keys,
        socket=folder / SOCKET,
        access_log=folder / "access.jsonl",
        speculation=True,
        seats=SEATS,
        context=CONTEXT,
        served_names=("target",),
        limits=GateLimits(max_tokens=LONGEST_ANSWER),
    )
    settings.write(folder / "gate.json")
    plan = _make_plan(target)
    environment = {**os.environ, GATE_VARIABLE: str(folder / "gate.json")}
    with (
        StubSupervisor(folder / SOCKET) as supervisor,
        run_engine(plan, log=folder / "engine.log", environment=environment) as url,
    ):
        port = urlsplit(url).port
        assert port is not None
        wait_until(lambda: supervisor.counts is not None, within_seconds=10)
        arguments = tuple(plan.argv()[3:])
        yield Gated(port, folder, attacker, neighbour, monitor, settings, arguments, supervisor)


def _make_plan(target: Path) -> LaunchPlan:
    return make_plan(
        read_host(this_machine(os.environ, datetime.now(UTC))),
        read_checkpoint(str(target)),
        read_checkpoint(str(SHIPPED_DRAFTER), tokenizer=False),
        None,
        make_options(
            users=SEATS,
            context=CONTEXT,
            draft_length=7,
            served_name="target",
            engine=(
                *("--enforce-eager", "--middleware", GATE_CLASS),
                *("--structured-outputs-config", '{"backend": "xgrammar"}'),
            ),
        ),
    )


def _session_of(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None
