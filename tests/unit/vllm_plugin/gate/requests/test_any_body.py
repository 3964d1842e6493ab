"""Whatever a body says, it is refused or passed on as it came; nothing breaks the gate."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.serving.access.gate_file import GateRecording
from slipstream.training.prompts import read_prompts
from slipstream.vllm_plugin.gate.answers.records import PARAMETERS
from slipstream.vllm_plugin.gate.requests.content import CONTENT_FIELDS
from slipstream.vllm_plugin.gate.requests.limits import LISTS, SCHEMAS
from slipstream.vllm_plugin.gate.requests.policy import NOT_WITH_SPECULATION, SERVER_FIELDS
from tests.unit.vllm_plugin.gate.pieces import CHAT, Engine, call, make_gate, make_scope

FIELDS = (
    *(*PARAMETERS, *LISTS, *SCHEMAS, *NOT_WITH_SPECULATION, *CONTENT_FIELDS, *SERVER_FIELDS),
    *("prompt", "best_of", "logprobs", "top_logprobs", "stop_sequences", "structured_outputs"),
    *("tools", "chat_template_kwargs", "instructions"),
)
WORDS = ("role", "user", "content", "type", "text", "image_url", "output", "pattern", "regex")
NAMES = st.sampled_from([*WORDS, *FIELDS]) | st.text(max_size=3)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
TURNS = st.lists(st.fixed_dictionaries({"role": NAMES}, optional={"content": VALUES}), max_size=3)
DOCUMENTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)


def send(folder: Path, body: bytes) -> tuple[int, str, list[bytes]]:
    """Send a body to a gate with everything on; what it records must be readable."""
    engine, traffic = Engine(), folder / "traffic"
    gate = make_gate(
        folder,
        engine,
        speculation=True,
        long_answers="clamp",
        limits={"max_tokens": 100},
        recording=GateRecording(folder=traffic),
    )
    scope = make_scope(CHAT.encode(), method="POST")
    message = {"type": "http.request", "body": body, "more_body": False}
    start, *_ = asyncio.run(call(gate, scope, message))
    if traffic.exists():
        with (traffic / "requests.jsonl").open("a") as file:
            file.write('"Something to train on"\n')
        read_prompts([traffic / "requests.jsonl"], seed=0)
        (traffic / "requests.jsonl").unlink()
    return start["status"], str(start["headers"]), engine.bodies


@given(document=DOCUMENTS, turns=TURNS)
def test_any_document_is_refused_or_passed_on(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], turns: list[Any]
) -> None:
    body = json.dumps({"messages": turns, **document, "max_completion_tokens": 5}).encode()
    status, headers, bodies = send(tmp_path_factory.getbasetemp(), body)
    assert (status, len(bodies)) in ((200, 1), (400, 0))
    assert status == 400 or "x-slipstream-warning" in headers or bodies == [body]


@given(body=st.binary(max_size=40) | st.text('{}[]",:\\0 ', max_size=40).map(str.encode))
def test_any_bytes_are_refused_or_passed_on(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
) -> None:
    status, _, bodies = send(tmp_path_factory.getbasetemp(), body)
    assert (status, len(bodies)) in ((200, 1), (400, 0))
