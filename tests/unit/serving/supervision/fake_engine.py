"""A program under vLLM's name that fails as told: for faults that the real engine does not have."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.hardware import Host
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record
from slipstream.serving.messages import decode, encode, short_path
from slipstream.serving.run import Event, Run, RunFolder, State, Terms
from slipstream.serving.supervision.engine_process import choose_port
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.supervisor import Supervisor
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.serving.test_run import RUN

PROGRAM = '''
import json, os, signal, ssl, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder = Path(os.environ["FAKE"])
started = len(list(folder.glob("start-*")))
(folder / f"start-{started}").write_text(json.dumps([os.getpid(), *sys.argv[1:]]))
(folder / "environment").write_text(json.dumps(dict(os.environ)))
rules = json.loads((folder / "rules").read_text())
drafts, accepted, model = 0, 0, None

def find(name):
    """Return the rule of a name that this command line meets."""
    for rule in rules:
        if rule["at"] == name and all(word in " ".join(sys.argv) for word in rule["with"]):
            return rule

def count_tokens():
    """Return as many as the test says; they grow as long as the engine is only busy."""
    if (folder / "busy").exists():
        return int(1000 * time.monotonic())
    tokens = folder / "tokens"
    return (tokens.read_text() if tokens.exists() else drafts) or 0

def is_waiting(tokens):
    """Say whether an answer of so many tokens has to wait: forever, or behind others."""
    hangs = (folder / "hang").exists() and tokens >= int(os.environ.get("HANG", 0))
    return hangs or (folder / "busy").exists()

def die(rule):
    if rule["words"]:
        print(rule["words"], flush=True)
    if "signal" in rule:
        os.kill(os.getpid(), rule["signal"])
    os._exit(rule.get("code", 1))

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
        if self.path == "/metrics":
            shown = 0 if find("drafts") or find("undrafted") else accepted
            made = 0 if find("undrafted") else drafts
            self.answer(f"vllm:generation_tokens_total{{}} {count_tokens()}\\n"
                        f"vllm:spec_decode_num_drafts_total{{}} {made}.0\\n"
                        f"vllm:spec_decode_num_accepted_tokens_total{{}} {shown}.0\\n".encode())
        elif self.path == "/v1/models":
            longest = (rule := find("context")) and int(rule["words"])
            self.answer(json.dumps({"data": [{"max_model_len": longest}]}).encode())
        elif (folder / "end").exists():
            words = (folder / "end").read_text()
            (folder / "end").unlink()
            die({"words": words})
        elif (folder / "sick").exists():
            (folder / "asked").open("a").write("x")
            self.close_connection = True
        else:
            if "authorization" in self.headers:
                (folder / "key-for-health").touch()
            self.answer(b"")

    def do_POST(self):
        global drafts, accepted, model
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with (folder / "keys").open("a") as keys:
            keys.write(self.headers.get("authorization", "none") + "\\n")
        model = model or body["model"]
        if body["model"] != model:
            print(f"(APIServer pid={os.getpid()}) ERROR 11-16 04:47:11 [serving.py:274] Error with "
                  f"model error=ErrorInfo(message='The model `{body['model']}` does not exist.')",
                  flush=True)
            self.send_error(404)
            return
        if rule := find("request"):
            die(rule)
        while is_waiting(body["max_tokens"]):
            time.sleep(0.01)
        if "--speculative-config" in " ".join(sys.argv):
            drafts += 1
            accepted += not (folder / "noise").exists()
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}
        self.answer(json.dumps({"usage": usage}).encode())

if not find("silent"):
    for name in filter(None, os.environ.get("SLIPSTREAM_PATCHES", "").split(",")):
        print(f"slipstream patch {name}: applied", flush=True)
    if "--scheduler-cls" in sys.argv:
        print("slipstream steering: draft lengths [7]", flush=True)
if find("worker"):
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", stubborn])
    (folder / "worker").write_text(str(worker.pid))
if rule := find("start"):
    die(rule)
if find("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rule := find("say"):
    print(rule["words"], flush=True)
if find("stay"):
    time.sleep(60)
port = int(sys.argv[sys.argv.index("--port") + 1])
server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
if "--ssl-certfile" in sys.argv:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = ("--ssl-certfile", "--ssl-keyfile")
    context.load_cert_chain(*(sys.argv[sys.argv.index(flag) + 1] for flag in files))
    if "--ssl-ca-certs" in sys.argv:
        context.load_verify_locations(sys.argv[sys.argv.index("--ssl-ca-certs") + 1])
        context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
'''


@dataclass
class Peer:
    """The other end of a connection to a run's socket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, message: Record) -> None:
        self.writer.write(encode(message))

    async def hear(self, *kinds: type[Record]) -> Record | None:
        """Return the next message of these kinds; None if the supervisor has hung up."""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(20):
                while line := await self.reader.readline():
                    with suppress(ValueError):
                        return decode(line, kinds)
        return None


def rule(at: str, words: str = "", needs: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"at": at, "words": words, "with": needs or [], **more}


def write_program(folder: Path, *rules: dict[str, Any]) -> Path:
    """Write the program as a package vllm, with its rules, and return where to import it from."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for part in (package, *package.parents[:2]):
        (part / "__init__.py").touch()
    (package / "api_server.py").write_text(PROGRAM)
    (folder / "rules").write_text(json.dumps(rules))
    return folder


async def until(condition: Callable[[], object], said: Callable[[], object] = str) -> None:
    """Wait until something holds; `said` is what to show if it never does."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, said()
        await asyncio.sleep(0.01)


async def connect(socket: Path, *messages: Record) -> Peer:
    """Connect to a run's socket, and send messages."""
    with short_path(socket) as short:
        peer = Peer(*await asyncio.open_unix_connection(short))
    for message in messages:
        peer.send(message)
    return peer


class Stage:
    """A run with a fake engine, and what was told of it."""

    def __init__(
        self,
        folder: Path,
        host: Host,
        *rules: dict[str, Any],
        terms: Terms | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.fake = write_program(folder / "fake", *rules)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.fake),
            "FAKE": str(self.fake),
        }
        self.folder = RunFolder(folder / "runs" / "one")
        plan = make_plan(choose_port(None), *words)
        changes = {"plan": plan, "host": host, "terms": terms or Terms()}
        run = RUN.model_copy(update=changes)
        self.folder.begin(run)
        self.events: list[Event] = []
        self._peers: list[Peer] = []
        self.event_log = EventLog(self.folder, run, self.events.append)

    @property
    def run(self) -> Run:
        return self.event_log.run

    def serve(self, act: Callable[["Stage"], Coroutine[None, None, Any]] | None = None) -> Any:
        """Supervise to the end; `act` goes on meanwhile, and its end is a request to stop.

        What it returns is returned.
        """
        result = None

        async def serve() -> None:
            nonlocal result
            serving = asyncio.create_task(Supervisor(self.event_log, self.environment).serve())
            if act is not None:
                acting = asyncio.create_task(act(self))
                await asyncio.wait((serving, acting), return_when=asyncio.FIRST_COMPLETED)
                if acting.done():
                    result = await acting
                    os.kill(os.getpid(), signal.SIGTERM)
            try:
                await serving
            finally:
                for peer in self._peers:
                    peer.writer.close()

        asyncio.run(serve())
        return result

    async def say(self, *messages: Record, socket: Path | None = None) -> "Peer":
        """Connect to the run's socket as one of its processes or a command, and send messages."""
        self._peers.append(peer := await connect(socket or self.folder.socket, *messages))
        return peer

    def read_environment(self) -> dict[str, str]:
        """Return the variables of the last engine."""
        variables: dict[str, str] = json.loads((self.fake / "environment").read_text())
        return variables

    async def reach(self, state: State, times: int = 1) -> None:
        """Wait until the run has come to a state so many times."""
        deadline = time.monotonic() + 60
        while self.count(state) < times:
            assert time.monotonic() < deadline, self.messages()
            await asyncio.sleep(0.01)

    def count(self, state: State) -> int:
        states = [event.state for event in self.events]
        return sum(
            one == state != before for one, before in zip(states, [None, *states], strict=False)
        )

    def starts(self) -> list[list[str]]:
        """Return the arguments of each start of the engine."""
        files = sorted(self.fake.glob("start-*"))
        return [json.loads(file.read_text())[1:] for file in files]

    def count_starts(self) -> int:
        return len(list(self.fake.glob("start-*")))

    def set_rules(self, *rules: dict[str, Any]) -> None:
        """Have the engines that start from now on fail otherwise."""
        (self.fake / "new").write_text(json.dumps(rules))
        (self.fake / "new").rename(self.fake / "rules")

    def pid(self) -> int:
        """Return the process of the last start."""
        return int(json.loads(sorted(self.fake.glob("start-*"))[-1].read_text())[0])

    def read_failed_checks(self) -> str:
        """Return a letter for each health check that was not answered."""
        asked = self.fake / "asked"
        return asked.read_text() if asked.exists() else ""

    def messages(self) -> str:
        return "\n".join(f"{event.state}: {event.message}" for event in self.events)


MakeStage = Callable[..., Stage]


def make_plan(port: int, *more: str) -> LaunchPlan:
    """Make the plan of a target with a drafter, on a CPU."""
    words = ("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "8192", *more)
    made = bare_plan(*words, "--spec-tokens", "7", drafter="drafter")
    return RUN.plan.model_copy(update={"settings": made.settings, "environment": {}})
