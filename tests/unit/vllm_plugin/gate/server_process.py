"""The gate before a stub engine, in a process of its own whose memory can be read.

Usage: server_process.py SETTINGS. It prints its port, and serves until its input ends.
"""

import asyncio
import os
import socket
import sys
import threading
from types import SimpleNamespace

import uvicorn

from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from slipstream.vllm_plugin.gate.middleware import Gate

CHAT = "/v1/chat/completions"
ANSWER = b"a" * 1024


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with one kilobyte, or in a chat kilobyte after kilobyte until the client leaves."""
    if scope["type"] == "lifespan":
        for happened in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{happened}.complete"})
        return
    if scope["method"] == "POST":
        await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == CHAT:
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": ANSWER, "more_body": True})
            await asyncio.sleep(0.001)
        sys.stdout.write("left\n")
        sys.stdout.flush()
    else:
        await send({"type": "http.response.body", "body": ANSWER})


def main(settings: str) -> None:
    """Serve as vLLM does: the app's state has the server."""
    os.environ["SLIPSTREAM_GATE"] = settings
    gate, state = Gate(engine), SimpleNamespace()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await gate({**scope, "app": SimpleNamespace(state=state)}, receive, send)

    config = uvicorn.Config(app, log_level="critical", lifespan="on", http="httptools")
    config.load()
    state.server = server = uvicorn.Server(config)

    def stop_with_input() -> None:
        sys.stdin.read()
        server.should_exit = server.force_exit = True

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        threading.Thread(target=stop_with_input, daemon=True).start()
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
