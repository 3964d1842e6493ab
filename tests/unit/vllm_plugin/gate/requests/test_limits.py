"""What is too much is refused before the engine sees it; what is just enough passes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask,
    ask_chat,
    make_gate,
    read_error,
)

ENOUGH: list[dict[str, Any]] = [
    {"n": 8},
    {"n": None},
    {"best_of": 8},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": 20},
    {"prompt_logprobs": 0},
    {"stop": ["a", "b", "c", "d"]},
    {"stop": "x" * 256},
    {"stop": None},
    {"stop_token_ids": [1] * 1024},
    {"logit_bias": {str(number): 1 for number in range(1024)}},
    {"structured_outputs": {"regex": "a" * 2048}},
    {"structured_outputs": {"grammar": "g" * 16384}},
    {"structured_outputs": {"json": {"type": "string", "pattern": "a" * 2048}}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"enum": ["x" * 60000]}},
        }
    },
    {"tools": [{"function": {"description": "x" * 60000}}] * 3},
]
TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    *(({"n": number}, "n") for number in (9, 1000, 8.5, "1000", [1])),
    ({"best_of": 9}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    *(({"top_logprobs": number}, "top_logprobs") for number in (21, -1, "21")),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    *(({"stop": stops}, "stop") for stops in (["a"] * 5, "x" * 257, ["a", "x" * 257])),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    ({"bad_words": ["a"] * 1025}, "bad_words"),
    ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids"),
    ({"structured_outputs": "regex"}, "structured_outputs"),
    ({"structured_outputs": [{"regex": "a"}]}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a" * 2049}}, "regex"),
    ({"structured_outputs": {"json": {"items": [{"pattern": "a" * 2049}]}}}, "pattern"),
    ({"structured_outputs": {"grammar": "g" * 16385}}, "grammar"),
    ({"structured_outputs": {"json": "x" * 65537}}, "json"),
    ({"structured_outputs": {"choice": ["x" * 65536]}}, "choice"),
    ({"response_format": {"x": "x" * 65536}}, "response_format"),
    ({"text": {"x": "x" * 65536}}, "text"),
    ({"tools": [{}, {"x": "x" * 65536}]}, "tools"),
]


def name(fields: dict[str, Any]) -> str:
    return json.dumps(fields)[:40]


@pytest.mark.parametrize("fields", ENOUGH, ids=name)
def test_what_is_just_enough_passes_as_it_came(tmp_path: Path, fields: dict[str, Any]) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine, constraints="any"), **fields)
    assert answer.status_code == 200
    assert engine.document == HELLO | fields


@pytest.mark.parametrize(("fields", "field"), TOO_MUCH, ids=lambda part: name(part)[:40])
def test_what_is_too_much_is_refused(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine), **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert engine.scopes == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": ["a"] * 16}, 200),
        ({"prompt": ["a"] * 17}, 400),
        ({"prompt": [[1, 2]] * 17}, 400),
        ({"prompt": [1] * 5000}, 200),
        ({"prompt": ["a"] * 4, "n": 8}, 200),
        ({"prompt": ["a"] * 5, "n": 8}, 400),
        ({"prompt": [], "n": 8}, 200),
        ({"prompt": "a", "n": 0}, 200),
    ],
    ids=name,
)
def test_prompts_count_and_so_do_their_answers(
    tmp_path: Path, fields: dict[str, Any], status: int
) -> None:
    answer = ask(make_gate(tmp_path, Engine()), "/v1/completions", json=fields)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *((one, None) for one in (b"", b"{", b'{"n": NaN}', b'{"n": -Infinity}', b'{"a": "\xff"}')),
        *(
            (one, None)
            for one in ('{"n": 1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b"[]", b'"chat"')
        ),
        *((one, None) for one in (b'{"n": 1} {"n": 1000}', b'{"n": ' + b"9" * 5000 + b"}")),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", None),
        *((b"[" * depth + b"]" * depth, None) for depth in (9999, 50_000)),
        (b'{"n": 1e999}', "n"),
        (b'{"n": 1, "n": 1000}', "n"),
    ],
)
def test_a_body_that_is_no_sound_json_is_refused(
    tmp_path: Path, body: bytes, field: str | None
) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine), CHAT, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert read_error(answer)
    assert engine.scopes == []


def test_a_body_may_be_as_deep_as_the_limit(tmp_path: Path) -> None:
    engine = Engine()
    body = b'{"metadata": ' + b"[" * 63 + b"]" * 63 + b', "tools": [{}, {}, {}]}'
    assert ask(make_gate(tmp_path, engine), CHAT, content=body).status_code == 200
    assert engine.bodies == [body]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"a": [' + b"{}," * 7 + b"[]]}", 200),
        (b'{"a": [' + b"{}," * 8 + b"[]]}", 400),
        (b'{"a": "' + b"{" * 5000 + b'\\"[[["}', 200),
        (b'{"a": "' + b"{" * 5000 + b'\\\\", "b": [' + b"[]," * 9 + b"[]]}", 400),
        (b'{"a": "' + b"{" * 5000, 400),
    ],
)
def test_a_body_has_a_largest_number_of_objects(tmp_path: Path, body: bytes, status: int) -> None:
    gate = make_gate(tmp_path, Engine(), limits={"containers": 10})
    assert ask(gate, CHAT, content=body).status_code == status


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_has_a_largest_size(tmp_path: Path, declared: bool) -> None:
    engine = Engine()
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
