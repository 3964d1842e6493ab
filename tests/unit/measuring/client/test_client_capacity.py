"""The client is not what limits a measurement: 256 streams in one process, from another one.

Other work on the machine can only make a round worse, so the quietest of a few counts. Machines
differ by a factor of four, so what a chunk costs is counted in parses: the time that `json.loads`
takes for one, which no client is spared.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import pytest

from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.load import run_closed_loop
from slipstream.measuring.client.sample import Sample
from tests.unit.measuring.client.paced_server import make_chunk

SERVER = Path(__file__).parent / "paced_server.py"
STREAMS = 256
CHUNKS_A_SECOND = 40
CHUNKS = 80
MOST_ROUNDS = 15
MOST_PARSES_A_CHUNK = 12
PARSES = 5000


@dataclass(frozen=True, slots=True)
class Round:
    """What one load cost the client, and how its clock compares with the server's."""

    chunks_a_second: float
    core_share: float
    cpu_microseconds_a_chunk: float
    parses_a_chunk: float
    pace_error: float
    longest_pause: float

    def __str__(self) -> str:
        return (
            f"{self.chunks_a_second:,.0f} chunks/s, {self.core_share:.0%} of a core, "
            f"{self.cpu_microseconds_a_chunk:.0f} us or {self.parses_a_chunk:.1f} parses a chunk; "
            f"time per token off by {self.pace_error:+.1%}, "
            f"longest pause {self.longest_pause * 1000:.0f} ms"
        )


def run_round(seconds_a_chunk: float, chunks: int) -> Round:
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(seconds_a_chunk), str(chunks)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        endpoint = Endpoint(f"http://127.0.0.1:{int(server.stdout.readline())}", model="paced")
        message = {"role": "user", "content": "hi"}
        requests = [Request(messages=(message,), max_tokens=chunks)] * STREAMS
        cpu, wall = time.process_time(), time.monotonic()
        samples = run_closed_loop(endpoint, requests, concurrency=STREAMS)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    finally:
        server.kill()
        server.communicate()
    assert {sample.error for sample in samples} == {None}
    assert {len(sample.text.split()) for sample in samples} == {chunks}
    return Round(
        chunks_a_second=STREAMS * chunks / wall,
        core_share=cpu / wall,
        cpu_microseconds_a_chunk=cpu / (STREAMS * chunks) * 1e6,
        parses_a_chunk=cpu / (STREAMS * chunks) / time_parse(),
        pace_error=fmean(map(compare_pace, samples)),
        longest_pause=median(sample.longest_pause_seconds or 0 for sample in samples),
    )


def time_parse() -> float:
    event = make_chunk({"content": "12345.678901234"}, ids=2).split(b"data: ")[1]
    began = time.process_time()
    for _ in range(PARSES):
        json.loads(event.rstrip())
    return (time.process_time() - began) / PARSES


def compare_pace(sample: Sample) -> float:
    """Compare the time per token with that between the server's sending first and last."""
    sent = [float(word) for word in sample.text.split()]
    assert sample.seconds_per_token is not None
    return sample.seconds_per_token * (sample.output_tokens - 1) / (sent[-1] - sent[0]) - 1


def find_good_round(run: Callable[[], Round], is_good: Callable[[Round], bool]) -> bool:
    for _ in range(MOST_ROUNDS):
        sys.stdout.write(f"\n{STREAMS} streams: {(one := run())}")
        if is_good(one):
            return True
    return False


@pytest.mark.weekly
def test_256_streams_of_40_chunks_a_second_are_kept_up_with() -> None:
    def is_good(one: Round) -> bool:
        in_time = abs(one.pace_error) < 0.03 and one.longest_pause < 0.1
        return in_time and one.parses_a_chunk < MOST_PARSES_A_CHUNK

    assert find_good_round(lambda: run_round(1 / CHUNKS_A_SECOND, CHUNKS), is_good)


@pytest.mark.weekly
def test_a_client_that_is_full_spends_less_on_a_chunk() -> None:
    """It reads several chunks at a time; its clock then falls behind the server's."""

    def is_good(one: Round) -> bool:
        return one.parses_a_chunk < MOST_PARSES_A_CHUNK / 2

    assert find_good_round(lambda: run_round(1e-4, 4 * CHUNKS), is_good)
