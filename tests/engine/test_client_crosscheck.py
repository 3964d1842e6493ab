"""Our client and vLLM's own measure the same server alike, in turns, with the same requests.

Each is set against what the server itself timed meanwhile, so that other work on the machine
weighs on neither. vLLM's stops its first clock at a chat's role chunk, ours at the first token;
vLLM sends one right behind the other, so that is the same here.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import httpx
import pytest

from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.load import run_closed_loop
from slipstream.measuring.client.sample import Sample
from tests.engine.prompts import CHAT_PROMPTS
from tests.engine.server import Server

pytestmark = [pytest.mark.engine, pytest.mark.weekly]

ARM = Path(__file__).parent / "arms" / "bench_serve.py"
CONCURRENCY = 4
OUTPUT_TOKENS = 16
ROUNDS = 3
TOLERANCE = 0.03
PROMPTS = [text for texts in CHAT_PROMPTS.values() for text in texts][:8]


class Figures(NamedTuple):
    """Means over the requests of one round."""

    tokens_a_second: float
    first_token_seconds: float
    seconds_a_token: float


@contextmanager
def run_theirs(url: str, tokenizer: Path, folder: Path) -> Iterator[Callable[[], Figures]]:
    """Yield a function that runs `vllm bench serve` once, in a process that is kept."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in PROMPTS))
    command = [
        *(sys.executable, str(ARM), "--base-url", url),
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--model", "target", "--tokenizer", str(tokenizer)),
        *("--dataset-name", "custom", "--dataset-path", str(prompts)),
        *("--skip-chat-template", "--disable-shuffle", "--num-prompts", str(len(PROMPTS))),
        *("--custom-output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--temperature", "0"),
        *("--extra-body", '{"return_token_ids": true}'),
        *("--max-concurrency", str(CONCURRENCY), "--percentile-metrics", "ttft,tpot"),
        *("--ready-check-timeout-sec", "0", "--disable-tqdm"),
    ]
    with (
        (folder / "theirs.log").open("w") as log_file,
        subprocess.Popen(
            command,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        told, heard = process.stdin, process.stdout

        def run() -> Figures:
            told.write("\n")
            told.flush()
            line = heard.readline()
            assert line, (folder / "theirs.log").read_text()[-3000:]
            result = json.loads(line)
            assert result["total_output_tokens"] == len(PROMPTS) * OUTPUT_TOKENS
            return Figures(
                result["output_throughput"],
                result["mean_ttft_ms"] / 1000,
                result["mean_tpot_ms"] / 1000,
            )

        yield run
        told.close()


def measure_ours(url: str) -> list[Sample]:
    requests = [
        Request(
            prompt_id=str(number),
            messages=({"role": "user", "content": text},),
            max_tokens=OUTPUT_TOKENS,
            extra={"ignore_eos": True},
        )
        for number, text in enumerate(PROMPTS)
    ]
    samples = run_closed_loop(Endpoint(url), requests, concurrency=CONCURRENCY)
    assert [sample.error for sample in samples] == [None] * len(PROMPTS)
    assert {sample.output_tokens for sample in samples} == {OUTPUT_TOKENS}
    return samples


def summarize(samples: list[Sample]) -> Figures:
    began = min(sample.began_at for sample in samples)
    ended = max(sample.began_at + sample.seconds for sample in samples)
    return Figures(
        sum(sample.output_tokens for sample in samples) / (ended - began),
        fmean(sample.first_token_seconds or 0 for sample in samples),
        fmean(sample.seconds_per_token or 0 for sample in samples),
    )


def run_beside_the_server(url: str, run: Callable[[], Figures]) -> tuple[Figures, Figures]:
    """Return a client's figures, and in relation to the server's own of the same requests."""
    before = read_histograms(url)
    figures = run()
    seconds = {name: total - before[name] for name, total in read_histograms(url).items()}
    requests = len(PROMPTS)
    in_flight = CONCURRENCY * OUTPUT_TOKENS
    return figures, Figures(
        figures.tokens_a_second * seconds["e2e_request_latency"] / requests / in_flight,
        figures.first_token_seconds * requests / seconds["time_to_first_token"],
        figures.seconds_a_token * requests / seconds["request_time_per_output_token"],
    )


def read_histograms(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics", timeout=30).text
    found = re.findall(r"^vllm:(\w+)_seconds_sum\{.*\} (\S+)$", text, re.MULTILINE)
    return {name: float(total) for name, total in found}


def test_both_clients_measure_the_same(server: Server, target: Path, tmp_path: Path) -> None:
    with run_theirs(server.url, target, tmp_path) as run:
        clients = {"ours": lambda: summarize(measure_ours(server.url)), "theirs": run}
        run()  # imports and connects
        rounds: dict[str, list[tuple[Figures, Figures]]] = {name: [] for name in clients}
        for turn in range(ROUNDS):
            for name in sorted(clients, reverse=bool(turn % 2)):
                rounds[name].append(run_beside_the_server(server.url, clients[name]))
    for position, figure in enumerate(Figures._fields):
        plain, related = (
            [
                log(ours[kind][position] / theirs[kind][position])
                for ours, theirs in zip(rounds["ours"], rounds["theirs"], strict=True)
            ]
            for kind in (0, 1)
        )
        sys.stdout.write(
            f"\n{figure}: ours {median(one[0][position] for one in rounds['ours']):.4g}, theirs "
            f"{median(one[0][position] for one in rounds['theirs']):.4g}; in turns "
            f"{median(plain):+.1%}, beside the server's own {median(related):+.1%}"
            f" (from {min(related):+.1%} to {max(related):+.1%})"
        )
        assert abs(median(related)) <= TOLERANCE, figure
