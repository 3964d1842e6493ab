"""`slipstream demo` on the real engine, in a terminal, and interrupted at two moments."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.beside]

WITHIN_SECONDS = 300.0
LOOK_EVERY_SECONDS = 0.5
ENDED_WITHIN_SECONDS = 45.0
MARK = "SLIPSTREAM_DEMO_TEST"


@dataclass(slots=True)
class Performance:
    """The command in a terminal; its environment marks every process that comes of it."""

    process: "subprocess.Popen[bytes]"
    terminal: int
    mark: bytes
    shown: str = ""

    def watch_for(self, happened: Callable[[], bool]) -> None:
        """Read the terminal until something happened."""
        until = time.monotonic() + WITHIN_SECONDS
        while not happened():
            assert time.monotonic() < until, self.shown[-3000:]
            if select.select([self.terminal], [], [], LOOK_EVERY_SECONDS)[0]:
                self.shown += os.read(self.terminal, 1 << 16).decode(errors="replace")
            else:
                assert self.process.poll() is None, self.shown[-3000:]

    def interrupt(self) -> int:
        """Send what Ctrl-C sends, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=ENDED_WITHIN_SECONDS)

    def count_processes(self) -> int:
        """Count the processes of this command, itself and every engine's."""
        count = 0
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                count += self.mark in environment.read_bytes()
            except OSError:
                continue
        return count


@pytest.fixture
def performance(target: Path, tmp_path: Path) -> Iterator[Performance]:
    mark = uuid.uuid4().hex
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream", "demo", "--max-tokens", "24"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TERM": "xterm", MARK: mark},
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield Performance(process, ours, f"{MARK}={mark}\0".encode())
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_it_shows_both_reports_serves_and_leaves_nothing_behind(
    performance: Performance, tmp_path: Path
) -> None:
    performance.watch_for(lambda: "until Ctrl-C" in performance.shown)
    shown = performance.shown
    sys.stdout.write("\n" + "\n".join(re.findall(r"^ *[\d.]+ s  .*$|^Drafts made.*$", shown, re.M)))
    assert "replayed as measured" in shown
    assert "\033[32m" in shown
    steps = re.search(r"^  all .* (\d\.\d\d)  same for \d of 4", shown, re.M)
    assert steps is not None
    assert float(steps[1]) > 1.2
    assert "time of each token" in (tmp_path / "slipstream-demo.html").read_text().lower()
    url = re.search(r"serves at (http\S+)/v1 until", shown)
    assert url is not None
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = httpx.post(f"{url[1]}/v1/chat/completions", json=body, timeout=60).json()
    assert answer["model"].startswith("SmolLM2-135M-Instruct")
    assert answer["usage"]["completion_tokens"] == 4
    assert performance.interrupt() == 0
    assert performance.count_processes() == 0


def test_an_interrupt_while_an_engine_starts_leaves_nothing_behind(
    performance: Performance,
) -> None:
    performance.watch_for(lambda: performance.count_processes() > 3)
    assert performance.interrupt() == 130
    assert performance.count_processes() == 0
