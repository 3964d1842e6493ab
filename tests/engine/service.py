"""`slipstream serve` as a user runs it, with its clients, for the tests that hurt it."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.run import Run, RunFolder, find_runs_root, list_runs, read_process
from slipstream.serving.supervision.engine_process import choose_port

READY_WITHIN_SECONDS = 400.0
PROMPT = "The lighthouse keeper climbed the stairs and"
OTHER_NAME = "another-name"


@dataclass(slots=True)
class Service:
    """A detached run of the shipped pair at one port, and where it keeps its things."""

    home: Path
    target: Path
    port: int = field(default_factory=lambda: choose_port(None))
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """Return what a command's environment has beside this process's."""
        folders = {"XDG_STATE_HOME": self.home / "state", "XDG_CONFIG_HOME": self.home / "config"}
        named = {name: str(folder) for name, folder in folders.items()}
        return {"HF_HUB_OFFLINE": "1", **named, **self.environment}

    def command(
        self, *words: str, check: bool = True, typed: str | None = None, within: float = 600
    ) -> "subprocess.CompletedProcess[str]":
        """Run a verb to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", *words],
            env={**os.environ, **self.variables},
            input=typed,
            capture_output=True,
            text=True,
            timeout=within,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def serve(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Serve the shipped pair, and come back when it is ready."""
        options = ("--drafter", str(SHIPPED_DRAFTER), "--context", "1024", "--port", str(self.port))
        # As vLLM takes them: underscores, a suffix, several values, a short form of speculation.
        names = ("--served_model_name", self.target.name, OTHER_NAME)
        engine = ("--", "--enforce_eager", "--max_model_len=1k", *names, "--spec-tokens", "7")
        return self.command(
            "serve", str(self.target), *options, "--detach", "--json", *words, *engine, check=check
        )

    def end(self) -> None:
        """Stop whatever runs."""
        self.command("stop", "--now", check=False)

    @property
    def newest(self) -> tuple[RunFolder, Run]:
        """Return the run that began last."""
        state = {"XDG_STATE_HOME": str(self.home / "state")}
        return list_runs(find_runs_root(state))[0]

    def find_processes(self) -> dict[str, int]:
        """Return the processes of the newest run's engine, by what they call themselves."""
        _, run = self.newest
        assert run.engine is not None
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                name = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(fields[3]) == run.engine.pid and fields[0] not in "ZX":
                kind = next((kind for kind in KINDS if KINDS[kind] in name), name)
                found[kind] = int(stat.parent.name)
        return found

    def is_ready(self) -> bool:
        """Ask once; to load certificates for that would take most of the time."""
        try:
            answer = httpx.get(f"{self.url}/readyz", timeout=2, verify=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    def wait_for(self, what: Callable[[], bool], seconds: float = READY_WITHIN_SECONDS) -> float:
        """Wait, and return how long it took."""
        began = time.monotonic()
        while not what():
            waited = time.monotonic() - began
            assert waited < seconds, f"not within {seconds} s: {self.newest[0].read_events()[-5:]}"
            time.sleep(0.1)
        return time.monotonic() - began


KINDS = {
    "core": "VLLM::EngineCore",
    "api": "vllm.entrypoints",
    "warden": "warden.py",
}


@dataclass(slots=True)
class Outcome:
    """What became of the clients' requests: each was answered in the end, or is missing."""

    answered: int = 0
    cut_off: int = 0
    turned_away: int = 0


def ask_in_crowd(
    service: Service, clients: int, requests: int, *, meanwhile: Callable[[Outcome], None]
) -> Outcome:
    """Have clients ask one request after the other; one that fails is asked again."""
    outcome, lock = Outcome(), threading.Lock()
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "model": service.target.name}

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=120) as client:
            deadline = time.monotonic() + READY_WITHIN_SECONDS
            left = requests
            while left and time.monotonic() < deadline:
                kind = _ask_once(client, body)
                with lock:
                    setattr(outcome, kind, getattr(outcome, kind) + 1)
                if kind == "answered":
                    left -= 1
                else:
                    time.sleep(0.5)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    meanwhile(outcome)
    for thread in threads:
        thread.join()
    return outcome


def _ask_once(client: httpx.Client, body: dict[str, Any]) -> str:
    """Tell a request that the server never took from one that it lost."""
    try:
        status = client.post("/v1/completions", json=body).status_code
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return "turned_away"
    except httpx.HTTPError:
        return "cut_off"
    if status == httpx.codes.OK:
        return "answered"
    return "turned_away" if status == httpx.codes.SERVICE_UNAVAILABLE else "cut_off"


def count_alive(pids: Sequence[int]) -> int:
    return sum(read_process(pid) is not None for pid in pids)


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def find_secret(key: str, service: Service) -> list[str]:
    """Name every file of the run and every process of it in which a key is written."""
    folder, run = service.newest
    pids = [run.supervisor.pid, *service.find_processes().values()]
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    files += [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
    assert len(files) > 10
    return [str(file) for file in files if key.encode() in file.read_bytes()]
