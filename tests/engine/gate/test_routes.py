"""Every path that vLLM serves, asked for in every way: only the listed ones answer."""

import json
import sys
from collections import Counter
from http import HTTPMethod
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.routes import name_route
from tests.engine.arms.launch import run_script
from tests.engine.gate.gated_server import Gated
from tests.engine.gate.wire import exchange, make_request

pytestmark = pytest.mark.engine

OPEN = {"/livez", "/readyz"}
HEALTH, METRICS = "/health", "/metrics"
METHODS = [str(method) for method in HTTPMethod if method != "CONNECT"]
QUESTIONS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 1},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hello"}]},
}


@pytest.fixture(scope="module")
def paths(gated: Gated, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return vLLM's paths, with a word in the place of every parameter."""
    scratch = tmp_path_factory.mktemp("routes")
    gate = {"SLIPSTREAM_GATE": str(gated.folder / "gate.json")}
    routes = run_script("list_routes.py", {"arguments": gated.arguments}, scratch, gate)
    listed = {path for path, _ in routes}
    log = (gated.folder / "engine.log").read_text()
    logged = {line.partition("Route: ")[2].partition(",")[0] for line in log.splitlines()} - {""}
    assert logged
    assert logged <= listed
    return sorted(path.replace("{response_id}", "resp_1") for path in listed)


def list_handlers(gated: Gated) -> set[str]:
    """List the paths that vLLM itself says it has served."""
    counted = gated.ask(METRICS, key=gated.monitor).body.decode().splitlines()
    lines = [line for line in counted if line.startswith("http_requests_total{")]
    return {line.partition('handler="')[2].partition('"')[0] for line in lines}


def expect_without_key(gated: Gated, method: str, path: str) -> int:
    if path in OPEN and method in ("GET", "HEAD"):
        return 200
    if path == HEALTH and method == "GET":
        return 200
    if path == METRICS and method == "GET":
        return 401
    return 401 if name_route(method, path) in gated.settings.routes else 404


def test_without_a_key_nothing_answers(gated: Gated, paths: list[str]) -> None:
    before, handlers = gated.read_counts().total, list_handlers(gated)
    seen: Counter[int] = Counter()
    for path in [*paths, *OPEN, "/", "/v1", "/nothing"]:
        for method in METHODS:
            status = gated.ask(path, method=method, body={}).status
            expected = expect_without_key(gated, method, path)
            assert (method, path, status) == (method, path, expected)
            seen[status] += 1
    assert gated.read_counts().total == before
    assert list_handlers(gated) - handlers <= {HEALTH, METRICS}
    sys.stdout.write(f"\nno key: {len(paths)} paths of vLLM, by status {dict(seen)}\n")


def test_with_a_key_only_the_listed_routes_answer(gated: Gated, paths: list[str]) -> None:
    served: list[str] = []
    for path in paths:
        for method in METHODS:
            body = {"model": "target", **QUESTIONS.get(path, {})} if method == "POST" else None
            answer = gated.ask(path, method=method, key=gated.attacker, body=body)
            if answer.status not in (403, 404):
                assert answer.status == 200, answer.body
                served.append(f"{method} {path}")
    # Nothing is stored, so no response can be found by its id.
    found = {route for route in gated.settings.routes if "{id}" not in route}
    assert {*served} == {*found, "GET /health"}
    stored = {"/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"}
    assert list_handlers(gated) <= {*QUESTIONS, *stored, "/v1/models", HEALTH, METRICS}
    assert gated.ask(METRICS, key=gated.attacker).status == 403
    listed = json.loads(gated.ask("/v1/models", key=gated.attacker).body)
    assert [(one["id"], one["root"]) for one in listed["data"]] == [("target", "target")]
    sys.stdout.write(f"\nwith a key: {', '.join(served)}\n")


def test_health_is_for_this_machine_or_a_key_and_metrics_for_a_key_of_their_own(
    gated: Gated,
) -> None:
    keys = (None, gated.attacker, gated.monitor)
    assert gated.ask(HEALTH).status == 200
    for header in (
        "CF-Connecting-IP: 192.0.2.7",
        "X-Forwarded-Host: example.org",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-For: 192.0.2.7",
        "Forwarded: for=127.0.0.1",
        "Via: 1.1 proxy",
        "X-Real-IP: ::1",
    ):
        asked = [gated.ask(METRICS, headers=(header,), key=key).status for key in keys]
        assert (header, asked) == (header, [401, 403, 200])
    for header in ("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: ::1"):
        assert (header, gated.ask(HEALTH, headers=(header,)).status) == (header, 401)
        assert gated.ask(HEALTH, headers=(header,), key=gated.attacker).status == 200


def spell(path: str) -> list[str]:
    """Write a path in ways that some server or other takes for the same."""
    first, _, rest = path.removeprefix("/").partition("/")
    encoded = "".join(f"%{ord(letter):02x}" for letter in first)
    rest = f"/{rest}" if rest else ""
    return [
        *(f"/{encoded}{rest}", f"/{encoded.upper()}{rest}", f"/%{first[:1]}{first[1:]}{rest}"),
        *(f"/{path}", f"//engine{path}", f"/.{path}", f"/x/..{path}", f"/%2e{path}"),
        *(f"{path}/", f"{path}/.", f"{path}//", f"{path}%20", f"{path}%00", f"{path}%2f"),
        *(f"{path};", f"{path}%3f", f"{path}\\", f"\\{path}", f"{path.upper()}", f"*{path}"),
        f"{path.replace('/', '%2f')}",
        f"/{path.removeprefix('/').replace('/', '//')}/",
        f"/v1/models/..{path}",
        f"/livez/..{path}",
        f"/livez;{path}",
    ]


def test_no_other_spelling_of_a_path_gets_through(gated: Gated, paths: list[str]) -> None:
    handlers, seen = list_handlers(gated), Counter[int]()
    for path in paths:
        for target in {*spell(path)} - {path}:
            for method in ("GET", "POST"):
                body = b"{}" if method == "POST" else None
                sent = make_request(target, method=method, key=gated.attacker, body=body)
                status = exchange(gated.port, sent).status
                seen[status] += 1
                assert (target, status in (400, 404)) == (target, True), status
    assert list_handlers(gated) == handlers
    sys.stdout.write(f"\nother spellings: by status {dict(seen)}\n")


@pytest.mark.parametrize("scheme", ["http", "https", "file"])
def test_the_whole_address_as_a_target_is_judged_by_its_path(gated: Gated, scheme: str) -> None:
    for path, expected in (("/invocations", 404), ("/version", 404), ("/v1/models", 401)):
        for host in ("engine", "evil.example:80", "a@b", "[::1]"):
            sent = make_request(f"{scheme}://{host}{path}")
            status = exchange(gated.port, sent).status
            assert (path, host, status in (400, expected)) == (path, host, True), status


@pytest.mark.parametrize(
    "host",
    ["engine/v1/models?", "127.0.0.1/livez#", "engine/livez?", "/livez", "engine\\livez", ""],
)
def test_the_host_has_no_say(gated: Gated, host: str) -> None:
    for path, expected in (("/version", 404), ("/invocations", 404), ("/v1/models", 401)):
        status = exchange(gated.port, make_request(path, host=host)).status
        assert (path, status in (400, expected)) == (path, True), status
