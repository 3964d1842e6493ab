"""The tests' own server ends with the tests, however they end."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

MARK = "SLIPSTREAM_SERVER_TEST"
STARTED_WITHIN_SECONDS = 60
ENDED_WITHIN_SECONDS = 10
# What pytest is to the server of a fixture.
OWNER = """
import sys
from pathlib import Path
from tests.engine.server import run_server

target, drafter, log = map(Path, sys.argv[1:])
with run_server(target, drafter, log):
    pass
"""


def find_marked(mark: str) -> list[int]:
    """Return the processes that have a mark in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}\0".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_whose_owner_is_ended_is_gone_soon_after(
    target: Path, drafters: dict[str, Path], tmp_path: Path, number: signal.Signals
) -> None:
    mark, log = uuid.uuid4().hex, tmp_path / "engine.log"
    repository = Path(__file__).parents[2]
    paths = [str(repository), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(target), str(drafters["echo"]), str(log)],
        env=os.environ | {MARK: mark, "PYTHONPATH": os.pathsep.join(paths)},
    ) as owner:
        until = time.monotonic() + STARTED_WITHIN_SECONDS
        while not (log.exists() and log.stat().st_size):  # vLLM has begun to tell
            assert owner.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        assert len(find_marked(mark)) >= 3  # the owner, the warden, vLLM
        owner.send_signal(number)
        assert owner.wait(timeout=ENDED_WITHIN_SECONDS) == -number
    until = time.monotonic() + ENDED_WITHIN_SECONDS
    while left := find_marked(mark):
        assert time.monotonic() < until, left
        time.sleep(0.1)
