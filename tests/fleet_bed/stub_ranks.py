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
