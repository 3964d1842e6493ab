"""In vLLM's place: the real gate before an app without a model, which starts in a second.

Tokens follow from the prompt alone, each takes a while, and prefill calls every one of them the
best. A choice that vLLM does not know ends it as it ends vLLM.
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
BAD_CHOICE = "no-such-choice"
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


class EngineClient:
    """Takes any drafter: what it is worth, a test writes into the ledger."""

    async def start_draft_weight_update(self) -> None:
        """Begin."""

    async def update_weights(self, request: object) -> None:
        """Load it."""

    async def finish_weight_update(self) -> None:
        """End."""


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
    words = sys.argv[1:]
    if BAD_CHOICE in words:
        sys.exit(f"api_server.py: error: argument: invalid choice: '{BAD_CHOICE}'")
    flags = {flag: value for flag, value in pairwise(words) if flag[:2] == "--"}
    engine = Engine(
        flags.get("--served-model-name", "stub"), drafts=any("speculative" in one for one in words)
    )
    gate, state = Gate(engine), SimpleNamespace(engine_client=EngineClient())

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
