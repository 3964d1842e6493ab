"""The user's own prompts keep their parameters; what cannot be asked is left out by line."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import InvalidInputError
from slipstream.measuring.workloads.own_files import MAX_TOKENS, OWN_HINT, read_own_file
from slipstream.measuring.workloads.workload import Prompt
from slipstream.serving.access.gate_file import GateRecording
from slipstream.vllm_plugin.gate.answers.records import PARAMETERS, RequestRecorder

USER = {"role": "user", "content": "What is ice?"}
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def read(folder: Path, *lines: Any) -> tuple[tuple[Prompt, ...], dict[str, str]]:
    return read_own_file(write(folder / "chat.jsonl", *lines))


def read_one(folder: Path, line: Any) -> Prompt:
    (prompt,), left_out = read(folder, line)
    assert left_out == {}
    return prompt


@pytest.mark.parametrize("line", ["What is ice?", {"prompt": "What is ice?"}, {"messages": [USER]}])
def test_a_prompt_is_a_message_of_the_user(tmp_path: Path, line: Any) -> None:
    prompt = read_one(tmp_path, line)
    assert prompt.messages == (USER,)
    assert (prompt.kind, prompt.max_tokens, prompt.extra) == ("chat", MAX_TOKENS, {})
    assert prompt.origin == f"{tmp_path / 'chat.jsonl'}:1"


def test_a_kind_is_stated_or_the_files_first_name(tmp_path: Path) -> None:
    prompt = read_one(tmp_path, {"prompt": "a", "kind": "law"})
    assert (prompt.kind, prompt.id.partition("-")[0]) == ("law", "law")
    (prompt,), _ = read_own_file(write(tmp_path / "traffic.jsonl.gz", "a"))
    assert prompt.kind == "traffic"


@pytest.mark.parametrize("key", ["request", "body"])
def test_a_log_keeps_what_its_requests_asked_for(tmp_path: Path, key: str) -> None:
    shape = {"type": "json_object"}
    asked = {"temperature": 0.7, "response_format": shape, "tools": TOOLS, "max_tokens": 64}
    request = {"model": "m", "stream": True, "n": 1, "messages": [USER], **asked}
    prompt = read_one(tmp_path, {key: request, "response": {"choices": []}})
    assert prompt.max_tokens == 64
    assert prompt.extra == {"temperature": 0.7, "response_format": shape, "tools": TOOLS}


def test_the_lines_own_parameters_beat_the_logged_ones(tmp_path: Path) -> None:
    line = {"request": {"messages": [USER], "temperature": 1, "top_p": 0.5}, "temperature": 0}
    assert read_one(tmp_path, line).extra == {"temperature": 0, "top_p": 0.5}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_every_name_of_the_limit_is_known(tmp_path: Path, name: str) -> None:
    prompt = read_one(tmp_path, {"prompt": "a", name: 33})
    assert (prompt.max_tokens, prompt.extra) == (33, {})


def test_calls_and_results_of_tools_stay_in_the_conversation(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "content": "cold", "tool_call_id": "1", "name": "look_up"}
    prompt = read_one(tmp_path, {"messages": [USER, called, result], "tools": TOOLS})
    assert prompt.messages == (USER, {**called, "content": ""}, result)


def test_what_the_target_said_last_is_not_asked(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Frozen water."}
    assert read_one(tmp_path, {"messages": [USER, answer]}).messages == (USER,)


def test_the_same_question_has_the_same_id_in_any_file(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, "b", "a") for name in ("one.jsonl", "two.jsonl"))
    write(second, {"prompt": "a", "kind": "one"})
    assert read_own_file(second)[0][0].id == read_own_file(first)[0][1].id


def test_another_temperature_is_another_question(tmp_path: Path) -> None:
    prompts, left_out = read(tmp_path, "a", {"prompt": "a", "temperature": 1}, "a")
    assert len({prompt.id for prompt in prompts}) == 2
    assert left_out == {f"{tmp_path / 'chat.jsonl'}:3": "a duplicate"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content other"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "no user message"),
        ({"prompt": " "}, "empty content"),
        ({"prompt": "a", "temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature: Input should be a finite"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: Input should be greater than or equal"),
        ({"prompt": "a", "n": 4}, "n: Input should be 1"),
        ({"prompt": "a", "tools": "all"}, "tools: Input should be a valid list"),
    ],
)
def test_what_cannot_be_asked_is_left_out_with_its_line(
    tmp_path: Path, line: Any, reason: str
) -> None:
    prompts, left_out = read(tmp_path, line, "b")
    assert [prompt.messages[0]["content"] for prompt in prompts] == ["b"]
    ((place, why),) = left_out.items()
    assert place == f"{tmp_path / 'chat.jsonl'}:1"
    assert why.startswith(reason)


def test_lines_that_cannot_be_read_are_one_error(tmp_path: Path) -> None:
    path = write(tmp_path / "chat.jsonl", 1, "a", {"text": "b"})
    with pytest.raises(InvalidInputError, match="lines that cannot be read: 2") as caught:
        read_own_file(path)
    assert [detail.split(": ")[0] for detail in caught.value.details] == [f"{path}:1", f"{path}:3"]
    assert caught.value.hint == OWN_HINT


def test_a_file_with_nothing_to_ask_is_refused_with_its_reasons(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no usable prompt in the 3 lines of") as caught:
        read(tmp_path, "", " ", {"messages": []})
    assert caught.value.details == ("empty content: 2", "no user message: 1")
    assert caught.value.hint == OWN_HINT


def test_a_recording_of_the_server_is_read_with_its_sampling_parameters(tmp_path: Path) -> None:
    folder = tmp_path / "traffic"
    recorder = RequestRecorder(GateRecording(folder=folder, limit_bytes=10_000, redact=()))
    sampling = {"temperature": 0.6, "top_p": 0.9, "seed": 7, "stop": ["END"], "top_k": 20}
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    recorder.record({"messages": [USER], "max_completion_tokens": 50, **sampling, **thinking})
    recorder.record({"messages": [USER], "temperature": "hot"})
    recorder.record({"instructions": "Be brief.", "input": "What is snow?"})
    prompts, left_out = read_own_file(folder / "requests.jsonl")
    assert [prompt.max_tokens for prompt in prompts] == [50, MAX_TOKENS]
    assert prompts[0].extra == {**sampling, **thinking}
    assert [message["role"] for message in prompts[1].messages] == ["system", "user"]
    assert list(left_out) == [f"{folder / 'requests.jsonl'}:2"]


def test_every_parameter_that_is_recorded_is_known_here(tmp_path: Path) -> None:
    values: dict[str, Any] = {"stop": ["x"], "chat_template_kwargs": {}, "reasoning_effort": "low"}
    line = {"prompt": "a", **{name: values.get(name, 1) for name in PARAMETERS}}
    prompt = read_one(tmp_path, line)
    dropped = {"model", "stream", "n", "max_tokens", "max_completion_tokens", "max_output_tokens"}
    assert set(prompt.extra) == set(PARAMETERS) - dropped
