"""Fields that are the server's are refused, what the engine cannot do is dropped and named."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.requests.content import MEDIA
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask,
    ask_chat,
    make_gate,
    read_error,
)

WARNING = "x-slipstream-warning"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template", "{{ messages }}"),
        ("kv_transfer_params", {"do_remote_prefill": True}),
        ("ec_transfer_params", {}),
        ("mm_processor_kwargs", {"num_crops": 4}),
        ("media_io_kwargs", {}),
        ("priority", -1),
        ("priority", 0),
        ("session_id", 1),
        ("stream_interval", 1),
        ("mm_payload", 1),
        ("request_id", "___prefill_addr_10.0.0.1"),
        ("vllm_xargs", {"a": 1}),
        ("prompt_embeds", "AAAA"),
    ],
)
def test_a_field_that_is_the_servers_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine), **{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert engine.scopes == []


def test_a_short_salt_passes_so_that_our_own_server_can_be_measured_cold(tmp_path: Path) -> None:
    engine = Engine()
    salt = "19a8b code 8 -1 'prompt' \\ 7"
    assert ask_chat(make_gate(tmp_path, engine), cache_salt=salt).status_code == 200
    assert engine.document == HELLO | {"cache_salt": salt}


@pytest.mark.parametrize("salt", ["", "x" * 129, 5, True, ["x"], {"a": 1}, "a\nb", "s\u00e4"])
def test_a_salt_that_is_not_a_short_text_is_refused(tmp_path: Path, salt: Any) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine), cache_salt=salt)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")
    assert engine.scopes == []


def test_a_field_that_says_nothing_passes(tmp_path: Path) -> None:
    engine = Engine()
    nothing = {"chat_template": None, "cache_salt": None, "chat_template_kwargs": None}
    assert ask_chat(make_gate(tmp_path, engine), **nothing).status_code == 200
    assert engine.document == HELLO | nothing


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"enable_thinking": False}, 200),
        ({"thinking": True, "enable_thinking": True}, 200),
        ({}, 200),
        ({"thinking": True, "tools": [], "date": 1}, 400),
        ("thinking", 400),
        ([], 400),
    ],
)
def test_a_template_is_told_only_what_is_listed(tmp_path: Path, given: Any, status: int) -> None:
    answer = ask_chat(make_gate(tmp_path, Engine()), chat_template_kwargs=given)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["param"] == "chat_template_kwargs"


def test_the_list_of_template_arguments_is_a_setting(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), template_arguments=("date",))
    assert ask_chat(gate, chat_template_kwargs={"date": 1}).status_code == 200
    assert ask_chat(gate, chat_template_kwargs={"thinking": True}).status_code == 400


def say(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


PICTURES: list[dict[str, Any]] = [
    say({"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}),
    say({"type": "text", "text": "see"}, {"image_url": "http://10.0.0.1/"}),
    say({"type": "text", "text": "see", "uuid": "1", "image_url": "http://10.0.0.1/"}),
    say({"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}}),
    say({"type": "video_url", "video_url": {}}),
    say({"type": "input_audio", "input_audio": {"data": ""}}),
    say({"type": "image_embeds", "image_embeds": ""}),
    say({"type": "prompt_embeds", "data": ""}),
    say({"type": "file", "file": {"file_id": "1"}}),
    say({"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/"}}),
    say({"type": "tool_result", "content": [{"type": "image", "source": {}}]}),
    {"messages": [{"role": "user", "content": {"type": "image_url", "image_url": ""}}]},
    {"system": [{"type": "document", "source": {}}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    {"input": [{"type": "function_call_output", "output": [{"type": "input_file"}]}]},
    {"input": [{"type": "computer_call_output", "output": {"type": "computer_screenshot"}}]},
    {"previous_input_messages": [{"content": [{"type": "input_image"}]}]},
]
TEXTS: list[dict[str, Any]] = [
    HELLO,
    say({"type": "text", "text": "an image_url in words"}, "a bare text"),
    say({"type": ["image_url"]}),
    say({"type": "tool_use", "input": {"image_url": "an argument"}}),
    {"messages": [], "tools": [{"function": {"parameters": {"properties": {"image_url": {}}}}}]},
    {"messages": "image_url"},
    {"input": "image_url"},
]


@pytest.mark.parametrize("document", PICTURES, ids=json.dumps)
def test_pictures_and_files_are_refused_by_a_server_of_text(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine), CHAT, json=document)
    assert answer.status_code == 400
    assert read_error(answer).partition(": ")[0] in MEDIA
    assert "slipstream serve --pictures" in read_error(answer)
    assert engine.scopes == []


@pytest.mark.parametrize("document", TEXTS, ids=json.dumps)
def test_text_passes(tmp_path: Path, document: dict[str, Any]) -> None:
    engine = Engine()
    assert ask(make_gate(tmp_path, engine), CHAT, json=document).status_code == 200
    assert engine.document == document


def test_headers_that_steer_the_engine_do_not_reach_it(tmp_path: Path) -> None:
    engine = Engine()
    headers = {
        "X-Request-Id": "chosen",
        "X-Vllm-Priority": "-5",
        "X-Data-Parallel-Rank": "1",
        "X-Session-Id": "another's",
        "X-Api-Key": "k",
        "Authorization": "Bearer k",
        "X-Other": "kept",
    }
    ask(make_gate(tmp_path, engine), CHAT, json=HELLO, headers=headers)
    reached = engine.headers
    assert reached.pop(b"x-request-id") != b"chosen"
    assert {name.lower().encode() for name in headers} & reached.keys() == {b"x-other"}
    assert engine.headers[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    ("path", "fields", "given", "warning"),
    [
        (CHAT, {"max_tokens": 101}, {"max_tokens": 100}, "max_tokens lowered to 100"),
        (CHAT, {"max_tokens": 100}, {"max_tokens": 100}, None),
        (
            CHAT,
            {"max_tokens": 999, "max_completion_tokens": 998},
            {"max_tokens": 100, "max_completion_tokens": 100},
            "max_completion_tokens lowered to 100; max_tokens lowered to 100",
        ),
        (CHAT, {}, {"max_completion_tokens": 100}, "max_completion_tokens set to 100"),
        (
            CHAT,
            {"max_output_tokens": 1},
            {"max_output_tokens": 1, "max_completion_tokens": 100},
            "max_completion_tokens set to 100",
        ),
        ("/v1/completions", {}, {}, None),
        (
            "/v1/completions",
            {"max_tokens": None},
            {"max_tokens": 100},
            "max_tokens set to 100",
        ),
        ("/v1/responses", {}, {"max_output_tokens": 100}, "max_output_tokens set to 100"),
        (
            "/v1/responses",
            {"max_output_tokens": 101},
            {"max_output_tokens": 100},
            "max_output_tokens lowered to 100",
        ),
        ("/v1/messages", {"max_tokens": 1e9}, {"max_tokens": 100}, "max_tokens lowered to 100"),
        ("/tokenize", {}, {}, None),
    ],
)
def test_a_long_answer_is_clamped_and_the_client_is_told(
    tmp_path: Path, path: str, fields: dict[str, Any], given: dict[str, Any], warning: str | None
) -> None:
    engine = Engine()
    gate = make_gate(
        tmp_path,
        engine,
        routes=[f"POST {path}"],
        long_answers="clamp",
        limits={"max_tokens": 100},
    )
    answer = ask(gate, path, json={"model": "m", **fields})
    assert (answer.status_code, answer.headers.get(WARNING)) == (200, warning)
    assert {**engine.document, "request_id": 0} == {"model": "m", **given, "request_id": 0}
    assert int(engine.headers[b"content-length"]) == len(engine.bodies[0])


@pytest.mark.parametrize("policy", ["clamp", "refuse"])
def test_a_length_in_words_is_refused(tmp_path: Path, policy: str) -> None:
    gate = make_gate(tmp_path, Engine(), long_answers=policy, limits={"max_tokens": 100})
    answer = ask_chat(gate, max_tokens="100000")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


def test_a_long_answer_can_be_refused_instead(tmp_path: Path) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, limits={"max_tokens": 100})
    answer = ask_chat(gate, max_completion_tokens=101)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_completion_tokens")
    assert engine.scopes == []
    assert ask_chat(gate, max_completion_tokens=100).status_code == 200


@pytest.mark.parametrize(
    ("fields", "given", "warning"),
    [
        ({"min_p": 0.1}, {}, "min_p dropped: not with speculation"),
        ({"logit_bias": {"5": -100}}, {}, "logit_bias dropped: not with speculation"),
        (
            {"min_p": "0.1", "logit_bias": {"5": 1}, "top_p": 0.5},
            {"top_p": 0.5},
            "min_p dropped: not with speculation; logit_bias dropped: not with speculation",
        ),
        (
            {"logprobs": True, "logprob_token_ids": [5]},
            {"logprobs": True},
            "logprob_token_ids dropped: not with speculation",
        ),
        ({"min_p": 0.0, "logit_bias": {}}, {"min_p": 0.0, "logit_bias": {}}, None),
        ({"min_p": None}, {"min_p": None}, None),
    ],
)
def test_what_speculation_cannot_do_is_dropped_and_the_client_is_told(
    tmp_path: Path, fields: dict[str, Any], given: dict[str, Any], warning: str | None
) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine, speculation=True), **fields)
    assert (answer.status_code, answer.headers.get(WARNING)) == (200, warning)
    assert answer.headers["content-type"] == "application/json"
    assert engine.document == HELLO | given


def test_or_it_is_refused(tmp_path: Path) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, speculation=True, unsupported_sampling="refuse")
    answer = ask_chat(gate, min_p=0.1, logit_bias={"5": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_p")
    assert engine.scopes == []
    assert ask_chat(gate, min_p=0).status_code == 200


def test_without_speculation_it_passes(tmp_path: Path) -> None:
    engine = Engine()
    assert ask_chat(make_gate(tmp_path, engine), min_p=0.1).status_code == 200
    assert engine.document == HELLO | {"min_p": 0.1}


def test_a_field_that_nobody_knows_is_dropped_with_a_warning(tmp_path: Path) -> None:
    engine = Engine()
    fields: dict[str, Any] = {"tempreature": 1, "caf\u00e9\r\nx: y": 2, "seed": 3}
    answer = ask_chat(make_gate(tmp_path, engine), **fields)
    assert answer.status_code == 200
    assert engine.document == HELLO | {"seed": 3}
    assert answer.headers["x-slipstream-warning"] == (
        "tempreature dropped: not a field of this API; caf???x: y dropped: not a field of this API"
    )


def test_a_body_of_odd_fields_only_is_refused(tmp_path: Path) -> None:
    odd: dict[str, Any] = {f"field{number}": 1 for number in range(17)}
    refused = ask_chat(make_gate(tmp_path, Engine()), **odd)
    assert refused.status_code == 400
