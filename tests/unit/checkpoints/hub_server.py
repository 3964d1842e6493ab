"""The hub on a local port: folders served under the hub's addresses, with a log of the bytes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Repository:
    """A folder as the hub presents it."""

    folder: Path
    sha: str
    licence: str | None = None
    gated: bool = False


@dataclass(frozen=True)
class Answer:
    """One request, and how many bytes of a body it was given."""

    method: str
    path: str
    served_bytes: int


@dataclass
class FakeHub:
    """Answers for its repositories, and remembers what it was asked."""

    repositories: dict[str, Repository]
    log: list[Answer] = field(default_factory=list)
    endpoint: str = ""

    def describe(self, name: str) -> dict[str, Any] | None:
        """Give what the API tells of a repository, at whichever revision."""
        repository = self.repositories.get(name)
        if repository is None:
            return None
        files = sorted(path.name for path in repository.folder.iterdir())
        card = {} if repository.licence is None else {"license": repository.licence}
        return {
            "id": name,
            "sha": repository.sha,
            "gated": "auto" if repository.gated else False,
            "siblings": [{"rfilename": file} for file in files],
            "cardData": card,
        }

    def served_bytes(self, suffix: str) -> int:
        """Add up what was served of files whose name ends so."""
        return sum(answer.served_bytes for answer in self.log if answer.path.endswith(suffix))


@contextmanager
def run_hub(repositories: dict[str, Repository]) -> Iterator[FakeHub]:
    """Serve until the block is left."""
    hub = FakeHub(repositories)

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
            server.shutdown()
            thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
        pass

    def _answer(self) -> None:
        match self.path.split("?")[0].strip("/").split("/"):
            case ["api", "models", owner, model]:
                self._describe(f"{owner}/{model}", None)
            case ["api", "models", owner, model, "revision", revision]:
                self._describe(f"{owner}/{model}", revision)
            case [owner, model, "resolve", revision, file]:
                self._resolve(f"{owner}/{model}", revision, file)
            case _:
                self._refuse(404, "EntryNotFound")

    def _describe(self, name: str, revision: str | None) -> None:
        told = self.hub.describe(name)
        if told is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in (None, "main", told["sha"]):
            self._refuse(404, "RevisionNotFound")
        else:
            self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self.hub.repositories[name]
        path = repository.folder / file
        if repository.gated:
            self._refuse(403, "GatedRepo")
        elif revision != repository.sha:
            self._refuse(404, "RevisionNotFound")
        elif not path.is_file():
            self._refuse(404, "EntryNotFound")
        else:
            headers = {"ETag": f'"{sha256(str(path).encode()).hexdigest()}"'}
            headers |= {"X-Repo-Commit": repository.sha, "Accept-Ranges": "bytes"}
            self._send_file(path, headers)

    def _send_file(self, path: Path, headers: dict[str, str]) -> None:
        size = path.stat().st_size
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._send(200, path.read_bytes(), headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or size), size - 1)
        with path.open("rb") as file:
            file.seek(start)
            part = file.read(end - start + 1)
        return self._send(206, part, headers | {"Content-Range": f"bytes {start}-{end}/{size}"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": f"{code} of the test"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        sent = body if self.command == "GET" else b""
        self.hub.log.append(Answer(self.command, self.path.split("?")[0], len(sent)))
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)
