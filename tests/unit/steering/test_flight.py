"""The recorder writes what the reader reads, whatever ends the process in between."""

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.steering.flight import MAGIC, read_flight
from slipstream.vllm_plugin.steering import flight_recorder
from slipstream.vllm_plugin.steering.flight_recorder import FlightRecorder

PROGRAM = """
import os, sys
from pathlib import Path
from slipstream.vllm_plugin.steering.flight_recorder import FlightRecorder
recorder = FlightRecorder(Path(sys.argv[1]))
for number in range(20000):
    recorder.add(running=number % 7, waiting=2, prompt_tokens=70_000, verified=5 * number,
                 drafted=3, copied=40, tokens=9,
                 memory_mib=1000 + number // 1000, seconds=0.05, cache=0.25)
os.kill(os.getpid(), 9)
"""


def add(recorder: FlightRecorder, memory_mib: int = 1) -> None:
    counts = {"running": 1, "waiting": 0, "prompt_tokens": 0, "verified": 0, "drafted": 0}
    recorder.add(**counts, copied=0, tokens=1, memory_mib=memory_mib, seconds=0.1, cache=0.0)


def test_the_last_steps_of_a_killed_process_are_there(tmp_path: Path) -> None:
    path = tmp_path / "flight.bin"
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    found = read_flight(path)
    assert found is not None
    assert found.steps == flight_recorder.STEPS
    assert (found.running, found.waiting, found.draft_length) == (19_999 % 7, 2, 3)
    assert (found.prompt_tokens, found.verified, found.copied) == (70_000, 99_995, 40)
    assert found.step_seconds == pytest.approx(0.05)
    assert (found.cache, found.memory_mib) == (0.25, 1019)
    assert found.memory_grown_mib > 0


def test_the_next_engine_keeps_the_last_ones_steps(tmp_path: Path) -> None:
    path = tmp_path / "flight.bin"
    add(FlightRecorder(path), memory_mib=7)
    FlightRecorder(path)
    assert read_flight(path) is None
    kept = read_flight(tmp_path / "flight-1.bin")
    assert kept is not None
    assert kept.memory_mib == 7


OLDER = struct.pack("<8sII", b"SLIPFLT1", 36, 1)
OLDER_STEP = struct.pack("<dIHHHHIIff", 1789000000.0, 0, 1, 0, 7, 7, 9, 1400, 0.05, 0.25)


@pytest.mark.parametrize(
    "content",
    [b"", MAGIC, b"x" * 4096, MAGIC + b"\xff" * 500, OLDER + OLDER_STEP],
)
def test_a_file_of_anything_else_says_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "flight.bin"
    path.write_bytes(content)
    assert read_flight(path) is None
    assert read_flight(tmp_path / "absent") is None


def test_a_folder_that_cannot_be_written_costs_the_record_only(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "nowhere" / "flight.bin")
    add(recorder)
    assert list(tmp_path.iterdir()) == []
