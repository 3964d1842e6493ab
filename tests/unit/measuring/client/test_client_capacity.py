"""The client is not what limits a measurement: 256 streams in one process, from another one.

Other work on the machine can only make a round worse, so the quietest of a few counts. Machines
differ by a factor of four, so what a chunk costs is counted in parses: the time that `json.loads`
takes for one, which no client is spared.
"""

import json
import subprocess
import sys
import time
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


def run_load() -> tuple[float, list[Sample]]:
    """Return the seconds of CPU that one load took the client, and its samples."""
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(1 / CHUNKS_A_SECOND), str(CHUNKS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        endpoint = Endpoint(f"http://127.0.0.1:{int(server.stdout.readline())}", model="paced")
        message = {"role": "user", "content": "hi"}
        requests = [Request(messages=(message,), max_tokens=CHUNKS)] * STREAMS
        began = time.process_time()
        samples = run_closed_loop(endpoint, requests, concurrency=STREAMS)
        return time.process_time() - began, samples
    finally:
        server.kill()
        server.communicate()


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


@pytest.mark.weekly
def test_256_streams_of_40_chunks_a_second_are_kept_up_with() -> None:
    for _ in range(MOST_ROUNDS):
        cpu, samples = run_load()
        assert {sample.error for sample in samples} == {None}
        assert {len(sample.text.split()) for sample in samples} == {CHUNKS}
        each = cpu / (STREAMS * CHUNKS)
        parses, pace = each / time_parse(), fmean(map(compare_pace, samples))
        pause = median(sample.longest_pause_seconds or 0 for sample in samples)
        cost = f"{each * 1e6:.0f} us or {parses:.1f} parses a chunk"
        sys.stdout.write(f"\n{cost}; time per token off by {pace:+.1%}, pause {pause:.3f} s")
        if abs(pace) < 0.03 and pause < 0.1 and parses < MOST_PARSES_A_CHUNK:
            return
    pytest.fail("no round was good")
