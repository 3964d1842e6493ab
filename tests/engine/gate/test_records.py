"""What happened on the real engine is on record: an id, a line and a count for every request."""

import json

import pytest

from slipstream.serving.following import AccessLine, read_access_line
from tests.engine.gate.gated_server import Gated, wait_until

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
SECRET = "a lighthouse that nobody may read about"
MAX_TOKENS = 12


def find_lines(gated: Gated, client_id: str) -> list[AccessLine]:
    log = gated.folder / "access.jsonl"
    lines = map(read_access_line, log.read_bytes().splitlines() if log.exists() else ())
    return [line for line in lines if line is not None and line.client_id == client_id]


def ask(gated: Gated, path: str, client_id: str, **fields: object) -> tuple[bytes, AccessLine]:
    """Ask under an id, and return the answer with its line in the log."""
    said = (
        {"input": SECRET, "max_output_tokens": MAX_TOKENS}
        if path == RESPONSES
        else {"messages": [{"role": "user", "content": SECRET}], "max_tokens": MAX_TOKENS}
    )
    answer = gated.ask(
        path,
        method="POST",
        key=gated.attacker,
        body={"model": "target", **said, **fields},
        headers=(f"X-Request-Id: {client_id}",),
    )
    shown = {name.lower(): value for name, value in answer.headers.items()}
    assert (answer.status, shown["x-request-id"]) == (200, client_id), answer.body
    wait_until(lambda: bool(find_lines(gated, client_id)), within_seconds=5)
    (line,) = find_lines(gated, client_id)
    assert (line.status, line.ended, line.refused) == (200, "complete", None)
    assert line.answer_bytes == len(answer.body)
    return answer.body, line


def test_a_plain_answer_is_a_line_with_its_tokens(gated: Gated) -> None:
    body, line = ask(gated, CHAT, "plain")
    answer = json.loads(body)
    assert answer["id"] == f"chatcmpl-{line.id}"
    counted = (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])
    assert (line.prompt_tokens, line.completion_tokens) == counted


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_stream_is_a_line_with_its_first_token(gated: Gated, path: str) -> None:
    asked = {"stream_options": {"include_usage": True}} if path == CHAT else {}
    _, line = ask(gated, path, f"stream-{path.rpartition('/')[2]}", stream=True, **asked)
    assert line.completion_tokens in range(1, MAX_TOKENS + 1)
    assert line.prompt_tokens is not None
    assert line.chunks is not None
    assert line.first_seconds is not None
    assert 0 < line.first_seconds < line.seconds


def test_a_stream_without_usage_has_its_chunks(gated: Gated) -> None:
    body, line = ask(gated, CHAT, "chunks", stream=True)
    assert line.completion_tokens is None
    assert line.chunks in range(2, body.count(b"data: ") + 1)


def test_the_gates_metrics_stand_beside_vllms(gated: Gated) -> None:
    names = ("requests_total", "request_seconds_count", "first_token_seconds_count")
    before = [gated.read_metric(f"slipstream_gate_{name}") for name in names]
    refused = gated.read_metric("slipstream_gate_refusals_total")
    ask(gated, CHAT, "counted", stream=True)
    assert gated.ask("/nothing").status == 404
    after = [gated.read_metric(f"slipstream_gate_{name}") for name in names]
    assert gated.read_metric("slipstream_gate_refusals_total") == refused + 1
    assert all(now > then for now, then in zip(after, before, strict=True))
    assert gated.read_metric("slipstream_gate_requests_in_flight") == 1  # for /metrics itself
    assert gated.read_metric("slipstream_gate_connections") >= 1
    assert gated.read_metric("vllm:generation_tokens_total") > 0


def test_no_prompt_and_no_key_is_on_record(gated: Gated) -> None:
    ask(gated, CHAT, "secret")
    written = b"".join(path.read_bytes() for path in gated.folder.glob("access*.jsonl"))
    for secret in (SECRET, gated.attacker, gated.neighbour):
        assert secret.encode() not in written
