"""The real vLLM API server as a child process, and a client that streams from it.

The server runs under our warden: it ends with this process, whatever ends that.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from slipstream.serving.supervision.engine_process import choose_port, run_group
from tests.engine.offline import BATCH_SIZE, MAX_TOKENS, speculative_config

READY_WITHIN_SECONDS = 240
IN_ONE_PROCESS = {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True, slots=True)
class Streamed:
    """One streamed answer, with the acceptance that its last chunk reported."""

    token_ids: list[int]
    chunks: int
    acceptance: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    url: str

    def stream(self, prompt: list[int]) -> Streamed:
        """Ask for a greedy completion and collect what comes."""
        body = {
            "model": "target",
            "prompt": prompt,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=120) as answer:
            assert answer.status_code == 200, answer.read()
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        token_ids = [
            token
            for chunk in chunks
            for choice in chunk["choices"]
            for token in choice["token_ids"] or []
        ]
        return Streamed(
            token_ids=token_ids,
            chunks=sum(1 for chunk in chunks if chunk["choices"]),
            acceptance=chunks[-1]["metrics"]["speculative_decoding"],
        )

    def read_counters(self) -> dict[str, float]:
        """Read the counters of speculative decoding, labels left aside."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        counters: dict[str, float] = {}
        for line in text.splitlines():
            name = line.partition("{")[0]
            if name.startswith("vllm:spec_decode_num_") and name.endswith("_total"):
                key = name.removeprefix("vllm:spec_decode_num_").removesuffix("_total")
                counters[key] = counters.get(key, 0) + float(line.rpartition(" ")[2])
        return counters


@contextmanager
def run_server(target: Path, drafter: Path, log: Path) -> Iterator[Server]:
    """Start vLLM in float32 with DFlash on a free port of loopback; end its whole group after."""
    port = choose_port(None)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(target), "--served-model-name", "target"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--max-model-len", "512", "--max-num-seqs", str(BATCH_SIZE)),
        *("--kv-cache-memory-bytes", str(1 << 30)),
        *("--speculative-config", json.dumps(speculative_config(drafter))),
        *("--per-request-spec-decode-metrics", "summary"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    with run_group(command, os.environ | IN_ONE_PROCESS, log) as process:
        server = Server(url=f"http://127.0.0.1:{port}")
        wait_until_healthy(server, process, log)
        yield server


def wait_until_healthy(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the server to answer, and show its log if it dies or takes too long."""
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"not healthy in {READY_WITHIN_SECONDS} s:\n{log.read_text()[-3000:]}")
