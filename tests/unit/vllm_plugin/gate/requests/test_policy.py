"""A request passes as it came, is changed and its client told, or is refused, on every API."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.requests.content import MEDIA
from slipstream.vllm_plugin.gate.requests.limits import list_tools
from slipstream.vllm_plugin.gate.requests.policy import LEAST_BUDGET
from tests.unit.vllm_plugin.gate.callers.test_key_ring import keyed_gate
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask,
    ask_chat,
    make_gate,
    read_error,
)

Document = dict[str, Any]

COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
COUNT = f"{MESSAGES}/count_tokens"
WARNING = "x-slipstream-warning"
MESSAGE: Document = {**HELLO, "max_tokens": 5}
RESPONSE: Document = {"model": "m", "input": "Hello"}
MARKED = {"cache_control": {"type": "ephemeral"}}
# As Claude Code writes it.
CODING: Document = {
    "model": "m",
    "max_tokens": 32_000,
    "system": [{"type": "text", "text": "You are an agent.", **MARKED}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **MARKED}]}],
    "tools": [{"name": "Bash", "description": "", "input_schema": {"type": "object"}}],
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
    "context_management": {"edits": []},
    "output_config": {"effort": "high"},
    "stream": True,
}
# As vllm-router writes it into every body.
ROUTED: Document = {
    **{"logprobs": False, "ignore_eos": False, "continue_final_message": False},
    **{"no_stop_trim": False, "separate_reasoning": True, "stream_reasoning": True},
    **{"return_hidden_states": False, "include_reasoning": True, "skip_special_tokens": True},
}


def say(*parts: Any) -> Document:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def name(part: Any) -> str:
    return json.dumps(part)[:60]


LARGE_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 60000]}}}
IN_A_CHAT: list[Document] = [
    *({"n": 8}, {"n": None}, {"best_of": 8}, {"logprobs": True, "top_logprobs": 20}),
    *({"logprobs": 20}, {"prompt_logprobs": 0}, {"stop": ["a", "b", "c", "d"]}),
    *({"stop": "x" * 256}, {"stop": None}, {"stop_token_ids": [1] * 1024}),
    {"logit_bias": {str(number): 1 for number in range(1024)}},
    {"structured_outputs": {"regex": "a" * 2048}},
    {"structured_outputs": {"grammar": "g" * 16384}},
    {"structured_outputs": {"json": {"type": "string", "pattern": "a" * 2048}}},
    {"response_format": LARGE_SCHEMA},
    {"tools": [{"function": {"description": "x" * 60000}}] * 3},
    # A server that is our own is measured cold with salts.
    {"cache_salt": "19a8b code 8 -1 'prompt' \\ 7"},
    {"chat_template": None, "cache_salt": None, "chat_template_kwargs": None},
    *({"chat_template_kwargs": one} for one in ({"enable_thinking": False}, {})),
    {"chat_template_kwargs": {"thinking": True, "enable_thinking": True}},
    *({"min_p": 0.1}, {"max_completion_tokens": 10**9}, ROUTED),
    say({"type": "text", "text": "an image_url in words"}, "a bare text"),
    say({"type": ["image_url"]}),
    say({"type": "tool_use", "input": {"image_url": "an argument"}}),
    {"messages": [], "tools": [{"function": {"parameters": {"properties": {"image_url": {}}}}}]},
    *({"messages": "image_url"}, {"input": "image_url"}),
]
IN_A_COMPLETION: list[Document] = [
    *({"prompt": ["a"] * 16}, {"prompt": [1] * 5000}, {"prompt": ["a"] * 4, "n": 8}),
    *({"prompt": [], "n": 8}, {"prompt": "a", "n": 0}),
]
PASSING = [
    *((CHAT, HELLO | one) for one in IN_A_CHAT),
    *((COMPLETIONS, one) for one in IN_A_COMPLETION),
    *((path, CODING) for path in (MESSAGES, COUNT)),
    (f"{MESSAGES}?beta=true", CODING),
]


@pytest.mark.parametrize(("path", "document"), PASSING, ids=name)
def test_what_is_just_enough_passes_as_it_came(
    tmp_path: Path, engine: Engine, path: str, document: Document
) -> None:
    gate = make_gate(tmp_path, engine, constraints="any", context=65_536)
    answer = ask(gate, path, json=document)
    assert (answer.status_code, WARNING in answer.headers) == (200, False)
    assert engine.document == document


def add(definition: Any) -> Document:
    """Make a message in which a turn of the system adds a tool."""
    change = {"type": "tool_definition", "definition": definition}
    turn = {"role": "system", "content": [{"type": "tool_addition", "tool": change}]}
    return {**MESSAGE, "messages": [turn, *HELLO["messages"]]}


def gather(tool: Document) -> Document:
    """Make a response with a tool in a namespace."""
    space = {"type": "namespace", "name": "n", "description": "", "tools": [tool]}
    return {**RESPONSE, "tools": [space]}


LARGE = {"x": "y" * 70_000}
WORDS = [str(number) for number in range(1025)]
SALTS: tuple[Any, ...] = ("", "x" * 129, 5, True, ["x"], {"a": 1}, "a\nb", "s\u00e4")
# In a chat, by the field that is at fault.
NOT_IN_A_CHAT: list[tuple[str, Document]] = [
    *(("n", {"n": number}) for number in (9, 1000, 8.5, "1000", [1])),
    *(("best_of", {"best_of": 9}), ("logprobs", {"logprobs": 21})),
    *(("top_logprobs", {"top_logprobs": number}) for number in (21, -1, "21")),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    *(("stop", {"stop": stops}) for stops in (["a"] * 5, "x" * 257, ["a", "x" * 257])),
    *(("stop_sequences", {"stop_sequences": ["a"] * 5}), ("bad_words", {"bad_words": WORDS})),
    ("allowed_token_ids", {"allowed_token_ids": [1] * 1025}),
    *(("structured_outputs", {"structured_outputs": one}) for one in ("regex", [{"regex": "a"}])),
    ("regex", {"structured_outputs": {"regex": "a" * 2049}}),
    ("pattern", {"structured_outputs": {"json": {"items": [{"pattern": "a" * 2049}]}}}),
    ("grammar", {"structured_outputs": {"grammar": "g" * 16385}}),
    ("json", {"structured_outputs": {"json": "x" * 65537}}),
    ("choice", {"structured_outputs": {"choice": ["x" * 65536]}}),
    *(("response_format", {"response_format": LARGE}), ("text", {"text": LARGE})),
    ("tools", {"tools": [{}, LARGE]}),
    *(("cache_salt", {"cache_salt": salt}) for salt in SALTS),
    ("chat_template_kwargs", {"chat_template_kwargs": {"thinking": True, "tools": [], "date": 1}}),
    ("chat_template_kwargs", {"chat_template_kwargs": "thinking"}),
    ("chat_template_kwargs", {"chat_template_kwargs": []}),
    ("chat_template", {"chat_template": "{{ messages }}"}),
    ("kv_transfer_params", {"kv_transfer_params": {"do_remote_prefill": True}}),
    ("mm_processor_kwargs", {"mm_processor_kwargs": {"num_crops": 4}}),
    *((one, {one: {}}) for one in ("ec_transfer_params", "media_io_kwargs")),
    *(("priority", {"priority": one}) for one in (-1, 0)),
    *((one, {one: 1}) for one in ("session_id", "stream_interval", "mm_payload")),
    ("request_id", {"request_id": "___prefill_addr_10.0.0.1"}),
    *(("vllm_xargs", {"vllm_xargs": {"a": 1}}), ("prompt_embeds", {"prompt_embeds": "AAAA"})),
    *(("max_tokens", {"max_tokens": "100000"}), ("max_tokens", {"max_tokens": 101})),
    ("max_completion_tokens", {"max_completion_tokens": 101}),
]
REFUSED: list[tuple[str, str | None, Document]] = [
    *((CHAT, field, HELLO | fields) for field, fields in NOT_IN_A_CHAT),
    (CHAT, None, HELLO | {f"field{number}": 1 for number in range(17)}),
    *((COMPLETIONS, "prompt", {"prompt": one}) for one in (["a"] * 17, [[1, 2]] * 17)),
    (COMPLETIONS, "n", {"prompt": ["a"] * 5, "n": 8}),
    # Errors of this API name no field.
    *((MESSAGES, None, {**MESSAGE, **one}) for one in ({"n": 1000}, {"max_tokens": "9"})),
    (MESSAGES, None, {**MESSAGE, "stop_sequences": ["a"] * 5}),
    (MESSAGES, None, {**MESSAGE, "chat_template_kwargs": {"tools": 1}}),
    (MESSAGES, None, {**MESSAGE, "vllm_xargs": {}}),
    (MESSAGES, None, add({"name": "a", "input_schema": LARGE})),
    *((RESPONSES, one, {**RESPONSE, one: 101}) for one in ("top_logprobs", "max_output_tokens")),
    *((RESPONSES, one, {**RESPONSE, one: "mine"}) for one in ("priority", "request_id")),
    (RESPONSES, "grammar", {**RESPONSE, "structured_outputs": {"grammar": "root ::= root"}}),
    (RESPONSES, "tools", gather({"type": "function", "name": "a", "parameters": LARGE})),
    (RESPONSES, "include", {**RESPONSE, "include": WORDS}),
    (RESPONSES, "metadata", {**RESPONSE, "metadata": dict.fromkeys(WORDS, "")}),
    *(
        (RESPONSES, one, {**RESPONSE, one: "resp_1", "store": True})
        for one in ("background", "previous_response_id", "conversation")
    ),
]


@pytest.mark.parametrize(("path", "field", "document"), REFUSED, ids=name)
def test_what_is_too_much_or_the_servers_to_decide_is_refused(
    tmp_path: Path, engine: Engine, path: str, field: str | None, document: Document
) -> None:
    answer = ask(make_gate(tmp_path, engine, limits={"max_tokens": 100}), path, json=document)
    assert (answer.status_code, answer.json()["error"].get("param")) == (400, field)
    assert engine.scopes == []


IMAGES: list[Document] = [
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


@pytest.mark.parametrize("document", IMAGES, ids=name)
def test_images_and_files_are_refused_by_a_server_of_text(
    tmp_path: Path, engine: Engine, document: Document
) -> None:
    answer = ask(make_gate(tmp_path, engine), CHAT, json=document)
    assert (answer.status_code, engine.scopes) == (400, [])
    assert read_error(answer).partition(": ")[0] in MEDIA


CLAMP: Document = {"long_answers": "clamp", "limits": {"max_tokens": 100}}
DRAFTS: Document = {"speculation": True}
DROPPED = "dropped: not supported with speculation"
UNKNOWN = "dropped: not a field of this API"
CHANGED: list[tuple[Document, str, Document, Document, str | None]] = [
    (CLAMP, CHAT, {"max_tokens": 101}, {"max_tokens": 100}, "max_tokens lowered to 100"),
    (CLAMP, CHAT, {"max_tokens": 100}, {"max_tokens": 100}, None),
    (
        *(CLAMP, CHAT, {"max_tokens": 999, "max_completion_tokens": 998}),
        {"max_tokens": 100, "max_completion_tokens": 100},
        "max_completion_tokens lowered to 100; max_tokens lowered to 100",
    ),
    (CLAMP, CHAT, {}, {"max_completion_tokens": 100}, "max_completion_tokens set to 100"),
    (
        *(CLAMP, CHAT, {"max_output_tokens": 1}),
        {"max_output_tokens": 1, "max_completion_tokens": 100},
        "max_completion_tokens set to 100",
    ),
    (CLAMP, COMPLETIONS, {}, {}, None),
    (CLAMP, COMPLETIONS, {"max_tokens": None}, {"max_tokens": 100}, "max_tokens set to 100"),
    (CLAMP, RESPONSES, {}, {"max_output_tokens": 100}, "max_output_tokens set to 100"),
    (
        *(CLAMP, RESPONSES, {"max_output_tokens": 101}),
        *({"max_output_tokens": 100}, "max_output_tokens lowered to 100"),
    ),
    (CLAMP, MESSAGES, {"max_tokens": 1e9}, {"max_tokens": 100}, "max_tokens lowered to 100"),
    (CLAMP, "/tokenize", {}, {}, None),
    (DRAFTS, CHAT, {"min_p": 0.1}, {}, f"min_p {DROPPED}"),
    (DRAFTS, CHAT, {"logit_bias": {"5": -100}}, {}, f"logit_bias {DROPPED}"),
    (
        *(DRAFTS, CHAT, {"min_p": "0.1", "logit_bias": {"5": 1}, "top_p": 0.5}, {"top_p": 0.5}),
        f"min_p {DROPPED}; logit_bias {DROPPED}",
    ),
    (
        *(DRAFTS, CHAT, {"logprobs": True, "logprob_token_ids": [5]}, {"logprobs": True}),
        f"logprob_token_ids {DROPPED}",
    ),
    (DRAFTS, CHAT, {"min_p": 0.0, "logit_bias": {}}, {"min_p": 0.0, "logit_bias": {}}, None),
    (DRAFTS, CHAT, {"min_p": None}, {"min_p": None}, None),
    (
        *({}, CHAT, {"tempreature": 1, "caf\u00e9\r\nx: y": 2, "seed": 3}, {"seed": 3}),
        f"tempreature {UNKNOWN}; caf???x: y {UNKNOWN}",
    ),
    *(({}, path, {"fallbacks": []}, {}, f"fallbacks {UNKNOWN}") for path in (MESSAGES, COUNT)),
    # Of a chat beyond the context, the engine says so.
    ({"context": 100}, CHAT, {"max_tokens": 200}, {"max_tokens": 200}, None),
]


@pytest.mark.parametrize(("settings", "path", "fields", "given", "warning"), CHANGED, ids=name)
def test_what_is_changed_is_told_to_the_client(
    tmp_path: Path,
    engine: Engine,
    settings: Document,
    path: str,
    fields: Document,
    given: Document,
    warning: str | None,
) -> None:
    gate = make_gate(tmp_path, engine, routes=[f"POST {path}"], **settings)
    answer = ask(gate, path, json={"model": "m", **fields})
    assert (answer.status_code, answer.headers.get(WARNING)) == (200, warning)
    assert {**engine.document, "request_id": 0} == {"model": "m", **given, "request_id": 0}
    assert answer.headers["content-type"] == "application/json"
    assert int(engine.headers[b"content-length"]) == len(engine.bodies[0])


@pytest.mark.parametrize(
    ("settings", "refused", "field", "passing"),
    [
        (
            {"speculation": True, "unsupported_sampling": "refuse"},
            *({"min_p": 0.1, "logit_bias": {"5": 1}}, "min_p", {"min_p": 0}),
        ),
        (CLAMP, {"max_tokens": "100000"}, "max_tokens", {"max_tokens": 5}),
        (
            {"template_arguments": ("date",)},
            *({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
            {"chat_template_kwargs": {"date": 1}},
        ),
    ],
)
def test_a_setting_refuses_what_would_be_changed_or_taken(
    tmp_path: Path, settings: Document, refused: Document, field: str, passing: Document
) -> None:
    gate = make_gate(tmp_path, Engine(), **settings)
    answer = ask_chat(gate, **refused)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert ask_chat(gate, **passing).status_code == 200


@pytest.mark.parametrize(
    ("context", "tokens", "thinking"),
    [
        (16_384, 16_384, {"type": "enabled", "budget_tokens": 16_383}),
        (LEAST_BUDGET, LEAST_BUDGET, {"type": "adaptive"}),
        (None, 32_000, {"type": "enabled", "budget_tokens": 31_999}),
    ],
)
def test_an_answer_beyond_the_context_is_lowered_with_its_budget_of_thought(
    tmp_path: Path, engine: Engine, context: int | None, tokens: int, thinking: Document
) -> None:
    answer = ask(make_gate(tmp_path, engine, context=context), MESSAGES, json=CODING)
    assert (engine.document["max_tokens"], engine.document["thinking"]) == (tokens, thinking)
    assert (WARNING in answer.headers) is (tokens < 32_000)


def test_headers_that_steer_the_engine_do_not_reach_it(tmp_path: Path, engine: Engine) -> None:
    headers = {
        **{"X-Request-Id": "chosen", "X-Vllm-Priority": "-5", "X-Data-Parallel-Rank": "1"},
        **{"X-Session-Id": "another's", "X-Api-Key": "k", "Authorization": "Bearer k"},
        "X-Other": "kept",
    }
    ask(make_gate(tmp_path, engine), CHAT, json=HELLO, headers=headers)
    reached = engine.headers
    assert reached.pop(b"x-request-id") != b"chosen"
    assert {name.lower().encode() for name in headers} & reached.keys() == {b"x-other"}
    assert engine.headers[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    "tools", [None, "x", [None, 3, "x"], {"tools": []}, [{"tools": "x"}], [{"tools": [3]}]]
)
def test_odd_tools_are_the_engines_to_refuse(tools: Any) -> None:
    odd = [{"role": "system", "content": [{"tool": 3}, {"tool": {"definition": []}}, None]}, 3]
    listed = list_tools({"tools": tools, "messages": odd})
    assert listed == [tool for tool in tools or () if isinstance(tool, dict) and tools != {}]


def test_a_response_has_the_id_that_is_logged(tmp_path: Path, engine: Engine) -> None:
    gate, (key, _) = keyed_gate(tmp_path, engine, {}, {})
    stored = dict.fromkeys(("background", "previous_response_id", "conversation", "request_id"))
    answer = ask(gate, RESPONSES, key=key, json={**RESPONSE, **stored, "store": True})
    assert engine.document["request_id"] == f"resp_{answer.headers['x-request-id']}"
    assert len(engine.document["cache_salt"]) == 64
    assert int(engine.headers[b"content-length"]) == len(engine.bodies[0])
