"""Served engines that are measured in pairs: the same load at the same time, a core for each.

What slows the machine slows both. They exchange cores while they are measured.
"""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.measuring.client.engine_metrics import EngineCounts, parse_engine_counts
from slipstream.proving_ground import SHIPPED_DRAFTER, make_smollm2
from slipstream.serving.messages import ask
from slipstream.serving.run import RunFolder, find_runs_root, list_runs
from slipstream.serving.supervision.engine_process import choose_port
from slipstream.steering.state import SteeringOrder
from slipstream.user_folders import slipstream_cache

CORES = sorted(os.sched_getaffinity(0))[:2]
COPIES = ("copies", "copied", "copied_accepted")
SERVED = ("tokens", "steps", "drafted", *COPIES)


@dataclass(frozen=True)
class Engine:
    """A served engine and its run's folder."""

    port: int
    folder: RunFolder
    supervisor: int

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=900)

    def count(self) -> EngineCounts:
        """Read vLLM's own counters."""
        with self._open("/metrics") as answer:
            return parse_engine_counts(answer.read().decode())

    def read_state(self) -> dict[str, Any]:
        """Read the core's report, which is a second old at most."""
        with self._open("/slipstream/state") as answer:
            return json.load(answer)["steering"] or {}

    def fix(self, length: int) -> None:
        """Fix the draft length."""
        order = SteeringOrder(least=length, most=length)
        next(ask(self.folder.socket, order, (SteeringOrder,), seconds=5))

    def move(self, core: int) -> None:
        """Let every thread of it run on this core only."""
        for pid in list_tree(self.supervisor):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})

    def chat(self, body: dict[str, Any], over: threading.Event) -> str | None:
        """Return a streamed answer's text, None if `over` was set before its end."""
        pieces = []
        with self._open("/v1/chat/completions", {"stream": True, "temperature": 0} | body) as lines:
            for line in lines:
                if over.is_set():
                    return None
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        pieces.append(choice["delta"].get("content") or "")
        return "".join(pieces)


def list_tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from list_tree(int(child))


@dataclass(frozen=True)
class Arm:
    """A way of serving: plain, controlled, or NAME:LENGTH.

    `dflash` and `copies` keep the planned length (`--fixed-length`), without and with copies.
    `fixed` is an engine without copies whose length an order fixes, so one serves all lengths;
    `uncopied` is a controlled one without copies.
    """

    name: str

    @property
    def length(self) -> int | None:
        kind, _, length = self.name.partition(":")
        return int(length) if kind == "fixed" else None

    @property
    def key(self) -> str:
        """Return what the engine is known by; arms that differ in an order share one."""
        return "fixed" if self.length is not None else self.name.replace(":", "-")

    @property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return Slipstream's options, and vLLM's."""
        kind, _, length = self.name.partition(":")
        drafted = ("--drafter", str(SHIPPED_DRAFTER))
        tokens = ("--spec-tokens", length) if length and kind != "fixed" else ()
        return {
            "plain": (("--no-speculation",), ()),
            "dflash": ((*drafted, "--no-copy", "--fixed-length"), tokens),
            "copies": ((*drafted, "--fixed-length"), tokens),
            "fixed": ((*drafted, "--no-copy"), ()),
            "uncopied": ((*drafted, "--no-copy"), ()),
            "controlled": (drafted, ()),
        }[kind]


@contextmanager
def serve(home: Path, arm: Arm, *, users: int, context: int, dtype: str) -> Iterator[Engine]:
    """Serve the proving ground's target, planned for one core, until the block ends."""
    target = make_smollm2(slipstream_cache(os.environ))
    environment = {**os.environ, "XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    base, port = [sys.executable, "-m", "slipstream"], choose_port(None)
    ours, engines = arm.words
    options = ["--context", str(context), "--users", str(users), "--port", str(port)]
    options += ["--guardian", "off", "--detach"]
    # Without bfloat16 instructions, plans with and without drafts differ in it.
    engines = ("--dtype", dtype, *engines)
    command = [*base, "serve", str(target), *ours, *options, "--", *engines]
    subprocess.run(["taskset", "-c", str(CORES[0]), *command], env=environment, check=True)
    try:
        folder, run = list_runs(find_runs_root({"XDG_STATE_HOME": str(home)}))[0]
        yield Engine(port, folder, run.supervisor.pid)
    finally:
        subprocess.run([*base, "stop", "--now"], env=environment, check=False)


@contextmanager
def exchange_cores(pair: tuple[Engine, Engine], every: float) -> Iterator[None]:
    """Keep each engine on a core of its own, exchanged every so many seconds."""
    over = threading.Event()

    def place(cores: list[int]) -> None:
        for engine, core in zip(pair, cores, strict=True):
            engine.move(core)

    def work() -> None:
        turn = 0
        while not over.wait(every):
            turn += 1
            place(CORES[::-1] if turn % 2 else CORES)

    place(CORES)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def describe_work(
    before: tuple[EngineCounts, dict[str, Any]],
    after: tuple[EngineCounts, dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    """Return what an engine did in between, by vLLM's counters and its core's reports."""
    counts = after[0].since(before[0])
    tokens, accepted, drafts = counts.output_tokens or 0, counts.accepted or 0, counts.drafts or 0
    served = {name: _add_up(after[1], name) - _add_up(before[1], name) for name in SERVED}
    steps = max(1, served["steps"])
    return {
        "seconds": round(seconds, 2),
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 2),
        # By the ledger: vLLM also counts what was accepted beyond the end of an answer.
        "tokens_per_step": round(served["tokens"] / steps, 3),
        "tokens_per_draft": round(1 + accepted / drafts, 3) if drafts else None,
        "verified_per_step": round((served["drafted"] + served["copied"]) / steps, 3),
        "prompt_tokens": counts.prompt_tokens,
        "cached_tokens": counts.cache_hits,
        **{name: served[name] for name in COPIES},
        **{name: after[1].get(name) for name in ("spent_share", "calibration")},
    }


def _add_up(state: dict[str, Any], name: str) -> int:
    return sum(counts.get(name, 0) for counts in state.get("kinds", {}).values())
