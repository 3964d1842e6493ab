"""The hub on a local port: the calls that a download makes, and everything that goes wrong."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event, Thread
from typing import Any

NAME = "maker/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = b'{"model_type": "llama"}'


def make_shard(size: int, *, seed: int = 1) -> bytes:
    """Make a whole safetensors file of one tensor, in which no byte is like its neighbours."""
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"seed": str(seed)}, "weight": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + Random(seed).randbytes(size)


def make_index(*shards: str) -> bytes:
    """Make the index of these shards."""
    return json.dumps({"weight_map": {f"tensor {shard}": shard for shard in shards}}).encode()


def flip(content: bytes, at: int = -1) -> bytes:
    """Change one bit of one byte."""
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with one answer."""

    status: int | None = None
    code: str = ""
    change: Callable[[bytes], bytes] = bytes
    after: int | None = None
    meanwhile: Callable[[], object] = lambda: None
    cut: bool = False
    ignore_range: bool = False
    redirect: str | None = None


@dataclass(frozen=True)
class Request:
    """What a client asked for."""

    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """One repository, what is wrong with it, and what was asked of it."""

    files: dict[str, bytes]
    commit: str = COMMIT
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    log: list[Request] = field(default_factory=list)
    served_bytes: int = 0
    endpoint: str = ""
    closing: Event = field(default_factory=Event)

    def describe(self) -> dict[str, Any]:
        """Give what the API tells, with sizes and hashes."""
        files = [self._describe_file(name) | self.claims.get(name, {}) for name in self.files]
        return {"id": NAME, "sha": self.commit, "siblings": files}

    def asked(self, name: str) -> list[str | None]:
        """Give the ranges that were asked for of a file."""
        return [request.range for request in self.log if request.path.endswith(f"/{name}")]

    def stall(self) -> None:
        """Say nothing more until the test is over."""
        self.closing.wait(30)

    def take_fault(self, name: str) -> Fault:
        """Give what goes wrong this time."""
        waiting = self.faults.get(name, [])
        return waiting.pop(0) if waiting else Fault()

    def _describe_file(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        told: dict[str, Any] = {"rfilename": name, "size": len(content)}
        if not name.endswith((".safetensors", ".bin")):
            blob = b"blob %d\0" % len(content) + content
            return told | {"blobId": sha1(blob, usedforsecurity=False).hexdigest()}
        large = {"size": len(content), "sha256": sha256(content).hexdigest(), "pointerSize": 134}
        return told | {"blobId": "0" * 40, "lfs": large}


@contextmanager
def run_hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """Serve until the block is left."""
    hub = FakeHub(dict(files))

    class Handler(_HubHandler):
        pass

    Handler.hub = hub
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.closing.set()
            server.shutdown()
            thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        path, asked = self.path.split("?")[0], self.headers.get("Range")
        self.hub.log.append(Request(path, asked, self.headers.get("Authorization")))
        with suppress(ConnectionError):
            match path.strip("/").split("/"):
                case ["api", "models", "maker", "model", *revision]:
                    self._describe(revision[-1] if revision else "main")
                case ["maker", "model", "resolve", self.hub.commit, *parts]:
                    self._resolve("/".join(parts), asked)
                case ["elsewhere", *parts]:
                    self._resolve("/".join(parts), asked)
                case _:
                    self._refuse(404, "RepoNotFound")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
        pass

    def _describe(self, revision: str) -> None:
        fault = self.hub.take_fault("api")
        if fault.status:
            self._refuse(fault.status, fault.code)
        elif revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            body = fault.change(json.dumps(self.hub.describe()).encode())
            self._send(200, body, {"Content-Type": "application/json"}, fault)

    def _resolve(self, name: str, asked: str | None) -> None:
        fault = self.hub.take_fault(name)
        if fault.redirect:
            return self._send(302, b"", {"Location": f"{fault.redirect}/elsewhere/{name}"}, fault)
        if fault.status:
            return self._refuse(fault.status, fault.code)
        content = fault.change(self.hub.files[name])
        if asked is None or fault.ignore_range:
            return self._send(200, content, {}, fault)
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        told = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        return self._send(206, content[start:], told, fault)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code}, Fault())

    def _send(self, status: int, body: bytes, headers: dict[str, str], fault: Fault) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self._write(body[: fault.after])
        if fault.after is not None:
            fault.meanwhile()
            self._write(b"" if fault.cut else body[fault.after :])

    def _write(self, part: bytes) -> None:
        self.wfile.write(part)
        self.wfile.flush()
        self.hub.served_bytes += len(part)
