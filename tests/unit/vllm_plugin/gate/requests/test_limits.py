"""A body has a largest size, depth and number of parts, and is judged in milliseconds."""

import json
import time
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
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
        (b'{"a": [' + b"1," * 8 + b"1]}", 200),
        (b'{"a": [' + b"1," * 9 + b"1]}", 400),
        (b'{"documents": [{' + b",".join(b'"%d": 1' % key for key in range(9)) + b"}]}", 400),
        (b'{"tool_choice": {"tools": [' + b"1," * 8 + b"1]}}", 400),
        (b'{"prompt": [' + b"1," * 999 + b"1]}", 200),
        (b'{"prompt": [[' + b"1," * 999 + b"1], [1]]}", 200),
        (b'{"prompt": [[' + b'"",' * 9 + b'""]]}', 400),
        (b'{"prompt": [[' + b"true," * 9 + b"true]]}", 400),
        (b'{"prompt": [' + b"1," * 2**18 + b"1]}", 400),
        (b'{"messages": [' + b"{}," * 4 + b"{}]}", 400),
        (b'{"messages": [{"content": [' + b"{}," * 3 + b"{}]}]}", 400),
        (b'{"messages": [{"content": [' + b"0," * 3 + b"0]}]}", 400),
        (b'{"input": [' + b"0," * 99 + b"0]}", 200),
    ],
)
def test_a_body_has_a_largest_number_and_depth_of_values(
    tmp_path: Path, body: bytes, status: int
) -> None:
    gate = make_gate(tmp_path, Engine(), limits={"values": 10, "depth": 8, "turns": 4})
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


@pytest.mark.parametrize("more", [{}, {"truncate_prompt_tokens": 10}])
@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"prompt": "a" * 400}, 200),
        ({"prompt": "a" * 401}, 400),
        ({"prompt": ["a" * 400] * 3}, 200),
        ({"prompt": ["a", "a" * 401]}, 400),
        ({"messages": [{"role": "user", "content": "a" * 180}] * 2}, 200),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 401}]}]}, 400),
        ({"tools": [{"function": {"name": "a", "description": "a" * 300}}]}, 200),
        ({"tools": [{"function": {"name": "a", "description": "a" * 401}}]}, 400),
        ({"tools": [{"input_schema": {"properties": {"a" * 401: {}}}}]}, 400),
        ({"tools": [{"parameters": {"enum": [10**80] * 6}}]}, 400),
        ({"documents": [{"text": "a" * 401}]}, 400),
        ({"chat_template_kwargs": {"thinking": "a" * 401}}, 400),
        ({"messages": [{"content": [{"input": {"data": "a" * 401}}]}]}, 400),
        ({"prompt": [[1] * 900]}, 200),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a" * 401}}}, 200),
    ],
)
def test_a_text_that_no_context_holds_is_refused_before_it_is_tokenized(
    tmp_path: Path, engine: Engine, asked: dict[str, Any], status: int, more: dict[str, Any]
) -> None:
    gate = make_gate(tmp_path, engine, context=40)
    tokenizer = SimpleNamespace(max_chars_per_token=10)
    client = SimpleNamespace(renderer=SimpleNamespace(tokenizer=tokenizer))
    gate._read_engine(SimpleNamespace(state=SimpleNamespace(engine_client=client)))
    assert ask(gate, CHAT, json={**asked, **more}).status_code == status
    assert len(engine.scopes) == (status == 200)


def test_an_image_is_not_counted_as_text(tmp_path: Path, engine: Engine) -> None:
    gate = make_gate(tmp_path, engine, context=40, text_only=False)
    gate._longest_text = 400
    image = b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1" + bytes(999)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": image}
    statuses = [
        ask(gate, "/v1/messages", json={"max_tokens": 1, "messages": [{"content": parts}]})
        for text in ("a" * 200, "a" * 401)
        for parts in [[{"type": "image", "source": source}, {"type": "text", "text": text}]]
    ]
    assert [one.status_code for one in statuses] == [200, 400]


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
