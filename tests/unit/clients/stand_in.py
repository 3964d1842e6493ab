"""A stand-in for an engine: a server in a process and session of its own, and what it was asked."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.serving.run import Process, read_process

PROGRAM = Path(__file__).with_name("api_server.py")


@dataclass(frozen=True)
class StandIn:
    port: int
    process: Process
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def read_requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()[1:]]


@contextmanager
def run_stand_in(folder: Path, **wrong: Any) -> Iterator[StandIn]:
    log = folder / "stand-in.log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM), json.dumps(wrong)],
            stdout=file,
            start_new_session=True,
        ) as child,
    ):
        try:
            while not (told := log.read_text()).endswith("\n"):
                assert child.poll() is None
            process = read_process(child.pid)
            assert process is not None
            yield StandIn(int(told), process, log)
        finally:
            child.kill()
