"""An engine of two dozen tokens that answers as vLLM does, soundly or with a planted fault.

The next token depends on the last two. Its log-probabilities are multiples of 1/8 apart, as in
bfloat16, so near-ties come up as they do in earnest.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import exp, log
from random import Random
from typing import Any

from tests.unit.measuring.verifying.conformance.toy_calls import (
    ToyAnswer,
    make_answer,
    write_stream,
    write_whole,
)

VOCABULARY = 24
EOS = 0
CONTEXT = 160
BLOCK = 12
SPOILED_ABOVE = 20

Text = list[int]
Choose = Callable[[Text, Text, Text], int]
"""Prompt, answer so far and the tokens that may follow, the best first; the one to emit out."""
Call = Callable[[str, dict[str, Any], ToyAnswer], ToyAnswer | str]
"""Path, request and the sound answer; the one to give, or the stream's or document's text, out."""


@cache
def weigh(context: tuple[int, ...]) -> tuple[float, ...]:
    """Return the log-probability of every token after the last two."""
    chance = Random(str(context))
    logits = [round(chance.gauss(0, 2.5) * 8) / 8 for _ in range(VOCABULARY)]
    logits[EOS] = -6.0
    total = log(sum(exp(logit) for logit in logits))
    return tuple(logit - total for logit in logits)


@cache
def _rank(context: tuple[int, ...], allowed: range) -> tuple[int, ...]:
    likely = weigh(context)
    return tuple(sorted(allowed, key=lambda token: (-likely[token], token)))


def rank(text: Sequence[int], allowed: range = range(VOCABULARY)) -> list[int]:
    """Return the tokens after a text, the likeliest first."""
    return list(_rank(tuple(text[-2:]), allowed))


def find_gap(text: Sequence[int], ranked: Sequence[int]) -> float:
    """Return by how much the second of some tokens is behind the first after a text."""
    likely = weigh(tuple(text[-2:]))
    return likely[ranked[0]] - likely[ranked[1]]


@dataclass
class ToyEngine:
    """How one arm answers, and what it was asked."""

    choose: Choose = lambda prompt, answer, ranked: ranked[0]
    call: Call = lambda path, body, answer: answer
    takes_tools: bool = True
    heat: float = 1.0
    tells_prompts: bool = True
    tells_context: bool = True
    fails_grammars: bool = False
    greeting: int = 1
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Return status and content; requests of the conformance suite have a cache salt."""
        self.bodies.append(body)
        if "cache_salt" not in body:
            answer = self.answer(body)
            return 500 if "error" in answer else 200, json.dumps(answer)
        if "tools" in body and not self.takes_tools:
            return 400, json.dumps({"error": {"message": "requires --tool-call-parser"}})
        called = self.call(path, body, make_answer(body))
        if isinstance(called, str):
            return (500 if called.startswith("500") else 200), called
        write = write_stream if body["stream"] else write_whole
        content = write(path, called, [3, 4, 5])
        return 200, content if isinstance(content, str) else json.dumps(content)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body.get("prompt") or self.read_chat(body["messages"])
        if self.fails_grammars and "response_format" in body:
            return {"error": "grammar rejected tokens"}
        tokens = self.generate(prompt, body)
        choice: dict[str, Any] = {"token_ids": tokens, "prompt_token_ids": prompt}
        choice["finish_reason"] = "stop" if tokens[-1] == EOS else "length"
        if "prompt_logprobs" in body and self.tells_prompts:
            places = range(1, len(prompt))
            count = body["prompt_logprobs"]
            choice["prompt_logprobs"] = [None, *(self.tell(prompt, at, count) for at in places)]
        return {"choices": [choice]}

    def read_chat(self, messages: list[dict[str, str]]) -> Text:
        letters = "".join(message["content"] for message in messages)
        return [self.greeting, *(1 + ord(letter) % (VOCABULARY - 1) for letter in letters)]

    def generate(self, prompt: Text, body: dict[str, Any]) -> Text:
        answer: Text = []
        allowed = range(2, VOCABULARY, 2) if "response_format" in body else range(VOCABULARY)
        chance = Random(body.get("seed"))
        while len(answer) < body["max_tokens"]:
            text = [*prompt, *answer]
            if body["temperature"]:
                weights = [exp(one / self.heat) for one in weigh(tuple(text[-2:]))]
                token = chance.choices(range(VOCABULARY), weights)[0]
            else:
                token = self.choose(prompt, answer, rank(text, allowed))
            if token < 0:
                break
            answer.append(token)
            if token == EOS and not body.get("ignore_eos"):
                break
        return answer

    @staticmethod
    def tell(prompt: Text, place: int, count: int) -> dict[str, Any]:
        before = prompt[max(0, place - 2) : place]
        shown = {prompt[place], *rank(before)[:count]}
        return {str(token): {"logprob": weigh(tuple(before))[token]} for token in shown}

    def read(self, path: str) -> str:
        if path == "/metrics":
            return (
                f'vllm:cache_config_info{{hash_block_size="7",block_size="{BLOCK}",x="1"}} 1.0\n'
                f"vllm:spec_decode_num_drafts_total{{}} 50.0\n"
                f"vllm:spec_decode_num_accepted_tokens_total{{}} 40.0\n"
            )
        model = {"id": "toy", **({"max_model_len": CONTEXT} if self.tells_context else {})}
        return json.dumps({"data": [model]})


@contextmanager
def run_toy(engine: ToyEngine, port: int = 0) -> Iterator[str]:
    """Serve on loopback until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(engine.read(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = engine.respond(self.path, body)
            self.send(content, status)

        def send(self, content: str, status: int = 200) -> None:
            data = content.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def run_as_program(arguments: Sequence[str], fault: str) -> None:
    """Stand in for `python -m vllm...`: sound but for drafts or a cache as the fault has it."""
    drafts = any("speculative" in word for word in arguments)
    quantized = "--kv-cache-dtype=fp8" in arguments or "fp8" in arguments
    engine = ToyEngine()
    if drafts and fault == "spoil":
        engine = ToyEngine(choose=spoil)
    elif drafts and fault == "empty arguments":
        engine = ToyEngine(call=lose_arguments)
    elif quantized and fault == "coarse cache":
        engine = ToyEngine(choose=blur)
    sys.stdout.write("Initializing a V1 LLM engine with config: dtype=torch.float32, ...\n")
    sys.stdout.flush()
    port = int(arguments[len(arguments) - 1 - arguments[::-1].index("--port") + 1])
    with run_toy(engine, port):
        threading.Event().wait()


def spoil(prompt: Text, answer: Text, ranked: Text) -> int:
    """After a prompt that is not too short, emit a wrong token in the seventh place."""
    return ranked[-2] if len(answer) == 6 and len(prompt) > SPOILED_ABOVE else ranked[0]


def blur(prompt: Text, answer: Text, ranked: Text) -> int:
    """Emit the second best token in every fourth place."""
    return ranked[len(answer) % 4 == 3]


def lose_arguments(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
    """Stream calls without their arguments, as in vllm#56077."""
    if not body["stream"]:
        return answer
    return replace(answer, calls=[(name, "{}") for name, _ in answer.calls])
