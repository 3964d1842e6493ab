"""A body has a largest size, depth and number of parts, and is judged in milliseconds."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vllm_plugin.gate.pieces import CHAT, Engine, ask, make_gate, read_error


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *((one, None) for one in (b"", b"{", b'{"n": NaN}', b'{"n": -Infinity}', b'{"a": "\xff"}')),
        *((one, None) for one in ('{"n": 1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b"[]", b'"a"')),
        *((one, None) for one in (b'{"n": 1} {"n": 1000}', b'{"n": ' + b"9" * 5000 + b"}")),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", None),
        *((b"[" * depth + b"]" * depth, None) for depth in (9999, 50_000)),
        (b'{"n": 1e999}', "n"),
        (b'{"n": 1, "n": 1000}', "n"),
    ],
)
def test_a_body_that_is_no_sound_json_is_refused(
    tmp_path: Path, engine: Engine, body: bytes, field: str | None
) -> None:
    answer = ask(make_gate(tmp_path, engine), CHAT, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert read_error(answer)
    assert engine.scopes == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"metadata": ' + b"[" * 7 + b"]" * 7 + b', "tools": [{}]}', 200),
        (b'{"a": [' + b"{}," * 7 + b"[]]}", 200),
        (b'{"a": [' + b"{}," * 8 + b"[]]}", 400),
        (b'{"a": "' + b"{" * 5000 + b'\\"[[["}', 200),
        (b'{"a": "' + b"{" * 5000 + b'\\\\", "b": [' + b"[]," * 9 + b"[]]}", 400),
        (b'{"a": "' + b"{" * 5000, 400),
        (b'{"a": [[[[[[[[1]]]]]]]]}', 400),
    ],
)
def test_a_body_has_a_largest_number_and_depth_of_objects(
    tmp_path: Path, body: bytes, status: int
) -> None:
    gate = make_gate(tmp_path, Engine(), limits={"containers": 10, "depth": 8})
    assert ask(gate, CHAT, content=body).status_code == status


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_has_a_largest_size(tmp_path: Path, engine: Engine, declared: bool) -> None:
    gate = make_gate(tmp_path, engine, limits={"body_bytes": 1000})

    def send(size: int) -> tuple[int, str | None]:
        body = b'{"user": "' + b"x" * (size - 12) + b'"}'

        async def parts() -> Any:
            for start in range(0, size, 100):
                yield body[start : start + 100]

        answer = ask(gate, CHAT, content=body if declared else parts())
        return answer.status_code, answer.headers.get("connection")

    assert send(1000) == (200, None)
    assert send(1001) == (413, "close")
    assert [len(body) for body in engine.bodies] == [1000]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling"])
def test_a_list_of_texts_has_an_end(tmp_path: Path, path: str) -> None:
    gate = make_gate(tmp_path, Engine(), routes=(f"POST {path}",), limits={"list_items": 3})
    for field in ("input", "documents", "text_2"):
        statuses = [
            ask(gate, path, json={field: given}).status_code
            for given in (["a"] * 3, [1] * 9, "text", ["a"] * 4)
        ]
        assert (field, statuses) == (field, [200, 200, 200, 400])


def test_hostile_requests_are_answered_in_milliseconds(tmp_path: Path) -> None:
    """The most that is ever parsed is the largest body; ten times that is not even read."""
    gate = make_gate(tmp_path, Engine())
    bodies = [
        json.dumps({"n": 1000}).encode(),
        b"[" * 2_000_000,
        b'{"a": ' + b'{"a": ' * 300_000,
        b'{"messages": "' + b"x" * 20_000_000 + b'"}',
        b'{"messages": [' + b"{}," * 600_000 + b"{}]}",
        b'{"messages": [' + b"[]," * 600_000 + b"[]]}",
        b'{"stop": "' + b'\\"{' * 600_000,
        b'{"n": 9, "messages": [' + b"1," * 900_000 + b"1]}",
    ]
    for body in bodies:
        started = time.process_time()
        assert ask(gate, CHAT, content=body).status_code in (400, 413)
        assert time.process_time() - started < 0.5
