"""The hub on a local port: folders served as huggingface_hub asks for them, and what goes wrong."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

LARGE = (".safetensors", ".bin")


@dataclass(frozen=True)
class Repository:
    """A folder as the hub presents it at one commit."""

    folder: Path
    sha: str
    licence: str | None = None
    gated: bool = False
    only_listed: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def base_models(self) -> list[str]:
        """What its card names as base, as the hub's tags have it."""
        return [tag.split(":")[-1] for tag in self.tags if tag.count(":") == 1 and "base_" in tag]

    @cached_property
    def files(self) -> dict[str, dict[str, Any]]:
        """Size and hashes of every file, by name."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        found = {str(path.relative_to(self.folder)): _describe(path) for path in paths}
        return found | {name: {"size": 2, "oid": "0" * 40} for name in self.only_listed}


@dataclass(frozen=True)
class Answer:
    """One request, and how many bytes of a body it was given."""

    method: str
    path: str
    served_bytes: int
    authorization: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with one answer."""

    status: int | None = None
    code: str = ""
    change: Callable[[bytes], bytes] = bytes
    cut_after: int | None = None


@dataclass
class FakeHub:
    """Answers for its repositories, and remembers what it was asked."""

    repositories: dict[str, Repository]
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    log: list[Answer] = field(default_factory=list)
    endpoint: str = ""

    def served_bytes(self, suffix: str) -> int:
        """Add up what was served of files whose name ends so."""
        return sum(answer.served_bytes for answer in self.log if answer.path.endswith(suffix))

    def fetched(self) -> list[str]:
        """Return the names of the files that were asked for, in order."""
        gets = (answer.path for answer in self.log if answer.method == "GET")
        return [path.split("/resolve/")[1].split("/", 1)[1] for path in gets if "/resolve/" in path]

    def take_fault(self, what: str) -> Fault:
        """Return what goes wrong this time with a file, or with the API."""
        waiting = self.faults.get(what, [])
        return waiting.pop(0) if waiting else Fault()


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
        with suppress(ConnectionError):
            self._answer()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
        pass

    def _answer(self) -> None:
        match self.path.split("?")[0].strip("/").split("/"):
            case ["api", "models"]:
                self._list_models(parse_qs(urlsplit(self.path).query))
            case ["api", "models", owner, model, *rest]:
                revision = rest[1] if len(rest) == 2 else "main"
                self._describe(f"{owner}/{model}", revision, as_tree=rest[:1] == ["tree"])
            case [owner, model, "resolve", revision, *parts]:
                self._resolve(f"{owner}/{model}", revision, "/".join(parts))
            case _:
                self._refuse(404, "EntryNotFound")

    def _list_models(self, asked: dict[str, list[str]]) -> None:
        """Answer as the hub lists: what carries every tag, and the word that is searched for."""
        fault = self.hub.take_fault("list")
        if fault.status:
            return self._refuse(fault.status, fault.code)
        word = asked.get("search", [""])[0].lower()
        found = [
            _list_model(name, repository)
            for name, repository in self.hub.repositories.items()
            if set(asked.get("filter", ())) <= {*repository.tags} and word in name.lower()
        ]
        body = json.dumps(found[: int(asked["limit"][0])]).encode()
        return self._send(200, body, {"Content-Type": "application/json"})

    def _describe(self, name: str, revision: str, *, as_tree: bool) -> None:
        repository, fault = self.hub.repositories.get(name), self.hub.take_fault("api")
        if fault.status:
            self._refuse(fault.status, fault.code)
        elif repository is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", repository.sha):
            self._refuse(404, "RevisionNotFound")
        else:
            made = _list_tree(repository) if as_tree else _describe_repository(name, repository)
            self._send(200, json.dumps(made).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self.hub.repositories[name]
        path, fault = repository.folder / file, Fault()
        if self.command == "GET":
            fault = self.hub.take_fault(file)
        if repository.gated:
            self._refuse(403, "GatedRepo")
        elif fault.status:
            self._refuse(fault.status, fault.code)
        elif revision not in ("main", repository.sha):
            self._refuse(404, "RevisionNotFound")
        elif not path.is_file():
            self._refuse(404, "EntryNotFound")
        else:
            about = repository.files[file]
            etag = about["lfs"]["oid"] if "lfs" in about else about["oid"]
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repository.sha}
            self._send_file(path, headers | {"Accept-Ranges": "bytes"}, fault)

    def _send_file(self, path: Path, headers: dict[str, str], fault: Fault) -> None:
        size = path.stat().st_size
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._send(200, fault.change(path.read_bytes()), headers, fault.cut_after)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or size), size - 1)
        with path.open("rb") as file:
            file.seek(start)
            part = file.read(end - start + 1)
        told = {"Content-Range": f"bytes {start}-{end}/{size}"}
        return self._send(206, part, headers | told, fault.cut_after)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": f"{code} of the test"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut_after: int | None = None
    ) -> None:
        sent = body[:cut_after] if self.command == "GET" else b""
        authorization = self.headers.get("Authorization")
        path = self.path.split("?")[0]
        self.hub.log.append(Answer(self.command, path, len(sent), authorization))
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)


def _describe(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    blob = sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    about = {"size": len(content), "oid": blob}
    if path.suffix not in LARGE:
        return about
    large = {"oid": sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return about | {"lfs": large}


def _list_tree(repository: Repository) -> list[dict[str, Any]]:
    return [{"type": "file", "path": name} | about for name, about in repository.files.items()]


def _list_model(name: str, repository: Repository) -> dict[str, Any]:
    """Describe one model as a listing with `full` and `config` does."""
    stated: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        stated = json.loads((repository.folder / "config.json").read_text())
    kept = ("architectures", "auto_map", "model_type")
    return {
        "id": name,
        "sha": repository.sha,
        "private": False,
        "gated": "auto" if repository.gated else False,
        "downloads": 1484,
        "likes": 71,
        "tags": ["safetensors", *repository.tags, "region:us"],
        "siblings": [{"rfilename": file} for file in repository.files],
        "config": {key: stated[key] for key in kept if key in stated},
    }


def _describe_repository(name: str, repository: Repository) -> dict[str, Any]:
    siblings = []
    for file, about in repository.files.items():
        told = {"rfilename": file, "size": about["size"], "blobId": about["oid"]}
        if "lfs" in about:
            told["lfs"] = about["lfs"] | {"sha256": about["lfs"]["oid"]}
        siblings.append(told)
    card = {"license": repository.licence, "base_model": repository.base_models}
    return {
        "id": name,
        "sha": repository.sha,
        "gated": "auto" if repository.gated else False,
        "siblings": siblings,
        "cardData": {key: value for key, value in card.items() if value},
    }
