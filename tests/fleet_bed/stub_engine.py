<<<<<<< HEAD
"""A program under vLLM's name whose ranks need each other, for what is not about the engine.

Like vLLM's, the head answers its health check whatever becomes of the others; it cannot answer a
request without every one of them, and dies of one that is gone.
"""

from pathlib import Path

_HEAD = '''
import argparse, json, os, socket, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int)
parser.add_argument("--nnodes", type=int, default=1)
parser.add_argument("--master-addr")
parser.add_argument("--master-port", type=int)
options, _ = parser.parse_known_args()
meeting = socket.create_server((options.master_addr, options.master_port))
ranks = [meeting.accept()[0] for _ in range(options.nnodes - 1)]
lock, steps = threading.Lock(), 0


def step():
    """Have every rank take part, as a layer of the model does."""
    global steps
    with lock:
        for rank in ranks:
            rank.sendall(b"x")
            if not rank.recv(1):
                os._exit(1)
        steps += 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        names = ("generation_tokens", "spec_decode_num_drafts", "spec_decode_num_accepted_tokens")
        lines = [f"vllm:{name}_total{{}} {steps}" for name in names]
        self.answer("\\n".join([*lines, ""]).encode() if self.path == "/metrics" else b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        step()
        usage = {"prompt_tokens": 9, "completion_tokens": body.get("max_tokens", 1)}
        choices = [{"text": body.get("prompt", "")}]
        self.answer(json.dumps({"usage": usage, "choices": choices}).encode())


ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
'''
_FOLLOWER = '''
import socket, time


def run(options):
    """Take part in every step of the head."""
    while True:
        try:
            head = socket.create_connection((options.master_addr, options.master_port))
            break
        except OSError:
            time.sleep(0.1)
    while True:
        word = head.recv(1)
        # A real rank does not notice, either.
        head.sendall(word) if word else time.sleep(600)


class ServeSubcommand:
    def validate(self, arguments):
        pass

    def cmd(self, arguments):
        run(arguments)
'''
_MODULES = {
    "vllm/entrypoints/openai/api_server.py": _HEAD,
    "vllm/entrypoints/cli/serve.py": _FOLLOWER,
    "vllm/entrypoints/launchers/cli_args.py": """
class Parser:
    def __init__(self, parser):
        self._parser = parser

    def parse_args(self):
        for flag in ("--master-addr", "--master-port"):
            self._parser.add_argument(flag)
        self._parser.add_argument("--headless", action="store_true")
        return self._parser.parse_known_args()[0]


make_arg_parser = Parser
""",
    "vllm/entrypoints/serve/utils/api_utils.py": "def cli_env_setup(): pass\n",
    "vllm/utils/argparse_utils.py": (
        "from argparse import ArgumentParser as FlexibleArgumentParser\n"
    ),
}


def write_stub_engine(folder: Path) -> Path:
    """Write the program, and return the folder for PYTHONPATH."""
    for name, text in _MODULES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        # A package without this file would give way to the installed one.
        for package in file.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()
    return folder
=======
"""In vLLM's place: the real gate before an app without a model, which starts in a second.

Tokens follow from the prompt alone, each takes a while, and prefill calls every one of them the
best. An executor that vLLM does not know ends it as it ends vLLM.
"""

import asyncio
import json
import ssl
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from slipstream.vllm_plugin.gate.middleware import Gate

TOKEN_SECONDS = 0.02
BAD_EXECUTOR = "no-such-backend"
PROGRAM = "from tests.fleet_bed.stub_engine import main\nmain()\n"


def write_package(folder: Path) -> Path:
    """Write a package that `python -m vllm.entrypoints.openai.api_server` finds first."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for part in (package, *package.parents[:2]):
        (part / "__init__.py").touch()
    (package / "api_server.py").write_text(PROGRAM)
    return folder


class Engine:
    """What answers behind the gate."""

    def __init__(self, name: str, *, drafts: bool) -> None:
        self._name, self._drafts, self._steps = name, drafts, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        body = b""
        while (message := await receive()).get("type") == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET":
            await self._tell(scope["path"], send)
        else:
            await self._generate(json.loads(body), send)

    async def _tell(self, path: str, send: Send) -> None:
        if path == "/metrics":
            accepted = self._steps if self._drafts else 0
            text = (
                f"vllm:spec_decode_num_drafts_total {accepted}\n"
                f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
                f"vllm:generation_tokens_total {self._steps}\n"
            )
            await _say(send, text.encode(), b"text/plain")
        else:
            await _say_json(send, {"data": [{"id": self._name, "max_model_len": 512}]})

    async def _generate(self, body: dict[str, Any], send: Send) -> None:
        asked = body.get("prompt") or json.dumps(body.get("messages"))
        prompt = asked if isinstance(asked, list) else [1 + ord(one) % 90 for one in asked]
        count = int(body.get("max_tokens") or 16)
        tokens = [3 + (sum(prompt) + at) % 90 for at in range(count)]
        if not body.get("stream"):
            await asyncio.sleep(TOKEN_SECONDS * count)
            self._steps += count
            await _say_json(send, _describe(body, prompt, tokens))
            return
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        for token in tokens:
            await asyncio.sleep(TOKEN_SECONDS)
            self._steps += 1
            piece = f"data: {json.dumps({'choices': [{'text': str(token)}]})}\n\n".encode()
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _describe(body: dict[str, Any], prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "text": " ".join(map(str, tokens)),
        "message": {"role": "assistant", "content": " ".join(map(str, tokens))},
        "finish_reason": "length",
        "token_ids": tokens,
        "prompt_token_ids": prompt,
    }
    if body.get("prompt_logprobs"):
        places = [{str(token): {"logprob": -0.1}} for token in prompt[1:]]
        choice["prompt_logprobs"] = [None, *places]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
    return {"choices": [choice], "usage": usage}


async def _say_json(send: Send, document: dict[str, Any]) -> None:
    await _say(send, json.dumps(document).encode(), b"application/json")


async def _say(send: Send, content: bytes, kind: bytes) -> None:
    head = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": content})


def main() -> None:
    """Serve as the command line says."""
    words = sys.argv[1:]
    if BAD_EXECUTOR in words:
        sys.exit(f"api_server.py: error: argument: invalid choice: '{BAD_EXECUTOR}'")
    flags = {flag: value for flag, value in pairwise(words) if flag[:2] == "--"}
    engine = Engine(
        flags.get("--served-model-name", "stub"), drafts=any("speculative" in one for one in words)
    )
    gate, state = Gate(engine), SimpleNamespace()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await gate({**scope, "app": SimpleNamespace(state=state)}, receive, send)

    config = uvicorn.Config(
        app,
        host=flags["--host"],
        port=int(flags["--port"]),
        log_level="warning",
        lifespan="on",
        http="httptools",
        ssl_certfile=flags.get("--ssl-certfile"),
        ssl_keyfile=flags.get("--ssl-keyfile"),
        ssl_ca_certs=flags.get("--ssl-ca-certs"),
        ssl_cert_reqs=int(flags.get("--ssl-cert-reqs", ssl.CERT_NONE)),
    )
    config.load()
    state.server = uvicorn.Server(config)
    state.server.run()
>>>>>>> front
