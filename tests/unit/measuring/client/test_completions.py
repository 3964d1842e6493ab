"""The client asks as vLLM wants to be asked, keeps its pace, and tells what went wrong."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer, Request, ask, ask_all
from slipstream.steering.drafts import Drafts
from tests.unit.measuring.client.stream_server import StreamServer, refuse, run_stream_server

FakeServer = StreamServer


@contextmanager
def run_server(respond: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[FakeServer]:
    """Answer each request with a status and a document."""

    def write(body: dict[str, Any]) -> list[bytes | None]:
        status, told = respond(body)
        return refuse(str(status), told if isinstance(told, bytes) else json.dumps(told).encode())

    with run_stream_server(write) as server:
        yield server


def chat(token_ids: list[int], histogram: list[int] | None = None) -> dict[str, Any]:
    """Make vLLM's answer to a chat; `histogram` counts drafts by how many tokens held."""
    choice = {"token_ids": token_ids, "finish_reason": "stop", "message": {"content": "x"}}
    drafts = (
        None
        if histogram is None
        else {
            "num_spec_steps": sum(histogram),
            "num_draft_tokens": sum(histogram) * (len(histogram) - 1),
            "num_accepted_draft_tokens": sum(n * count for n, count in enumerate(histogram)),
            "acceptance_histogram": histogram,
        }
    )
    metrics = None if drafts is None else {"speculative_decoding": drafts}
    return {"choices": [choice], "prompt_token_ids": [1, 2], "metrics": metrics}


def say(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def collect(url: str, *requests: Request, concurrency: int = 1) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    ask_all(url, requests, ask, concurrency=concurrency, on_answer=answers.__setitem__)
    return answers


def test_a_chat_is_asked_for_its_tokens_under_the_servers_own_model_name() -> None:
    with run_server(lambda _: (200, chat([5, 6]))) as server:
        (answer,) = collect(
            server.url, Request(messages=say("hi"), max_tokens=9, extra={"seed": 3})
        ).values()
    assert [head.split()[1] for head in server.heads] == ["/v1/models", "/v1/chat/completions"]
    assert server.bodies == [
        {
            "messages": [{"role": "user", "content": "hi"}],
            "model": "the-model",
            "max_tokens": 9,
            "temperature": 0.0,
            "return_token_ids": True,
            "seed": 3,
        }
    ]
    assert (answer.prompt_ids, answer.token_ids, answer.finish_reason) == ((1, 2), (5, 6), "stop")
    assert answer.drafts == Drafts()


def test_a_completion_tells_its_prompt_within_the_choice() -> None:
    choice = {"token_ids": [5], "prompt_token_ids": [7, 8], "finish_reason": "length"}
    with run_server(lambda _: (200, {"choices": [choice]})) as server:
        (answer,) = collect(server.url, Request(prompt_ids=(7, 8), max_tokens=1)).values()
    assert server.heads[1].split()[1] == "/v1/completions"
    assert server.bodies[0]["prompt"] == [7, 8]
    assert (answer.prompt_ids, answer.token_ids, answer.finish_reason) == ((7, 8), (5,), "length")


def test_drafts_are_counted_by_the_position_that_was_accepted() -> None:
    # Four drafts held nothing, two one token, one all three.
    with run_server(lambda _: (200, chat([5], [4, 2, 0, 1]))) as server:
        (answer,) = collect(server.url, Request(messages=say("hi"), max_tokens=1)).values()
    assert answer.drafts == Drafts(drafts=7, drafted=21, accepted=(3, 1, 1))


def test_answers_are_given_as_they_come() -> None:
    second_is_in = threading.Event()

    def hold_the_first(body: dict[str, Any]) -> tuple[int, Any]:
        if body["max_tokens"] == 0:
            assert second_is_in.wait(timeout=5)
        return 200, chat([body["max_tokens"]])

    order: list[int] = []

    def note(number: int, _: Answer) -> None:
        order.append(number)
        second_is_in.set()

    requests = [Request(messages=say("hi"), max_tokens=number) for number in range(2)]
    with run_server(hold_the_first) as server:
        ask_all(server.url, requests, ask, concurrency=2, on_answer=note)
    assert order == [1, 0]


def test_a_request_that_fails_ends_the_others() -> None:
    over = threading.Event()

    def fail_one(body: dict[str, Any]) -> tuple[int, Any]:
        if body["max_tokens"] == 1:
            return 400, {"error": "too long"}
        over.wait(timeout=30)
        return 200, chat([5])

    requests = [Request(messages=say("hi"), max_tokens=number) for number in range(5)]
    with run_server(fail_one) as server:
        started = time.monotonic()
        with pytest.raises(EngineError, match="answered 400") as failed:
            collect(server.url, *requests, concurrency=2)
        assert time.monotonic() - started < 20
        over.set()
    assert failed.value.details == ('{"error": "too long"}',)
    assert len(server.bodies) <= 2


def test_what_the_receiver_of_answers_raises_comes_through() -> None:
    def stumble(number: int, _: Answer) -> None:
        raise OSError(f"disk full at {number}")

    request = Request(messages=say("hi"), max_tokens=1)
    with (
        run_server(lambda _: (200, chat([5]))) as server,
        pytest.raises(OSError, match="disk full at 0"),
    ):
        ask_all(server.url, [request], ask, concurrency=1, on_answer=stumble)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"choices": [{"finish_reason": "stop"}], "prompt_token_ids": [1]}, "without token ids"),
        ({"choices": [{"finish_reason": "stop", "token_ids": [1]}]}, "without token ids"),
        ({"choices": []}, "without token ids"),
        (["not", "an", "object"], "without token ids"),
        (b"<html>", "something other than JSON"),
    ],
)
def test_an_answer_in_another_form_is_shown(payload: Any, message: str) -> None:
    with (
        run_server(lambda _: (200, payload)) as server,
        pytest.raises(EngineError, match=message) as failed,
    ):
        collect(server.url, Request(messages=say("hi"), max_tokens=1))
    assert failed.value.details


def test_without_requests_nobody_is_asked() -> None:
    assert collect("http://127.0.0.1:1") == {}


def test_a_failure_may_have_a_stand_in_and_answers_are_listed_in_order() -> None:
    def fail_one(body: dict[str, Any]) -> tuple[int, Any]:
        return (500, {}) if body["max_tokens"] == 1 else (200, chat([body["max_tokens"]]))

    stand_in = Answer(prompt_ids=(), token_ids=(), finish_reason="failed")
    requests = [Request(messages=say("hi"), max_tokens=number) for number in range(3)]
    with run_server(fail_one) as server:
        answers = ask_all(server.url, requests, ask, concurrency=2, on_failure=lambda _: stand_in)
    assert [answer.token_ids for answer in answers] == [(0,), (), (2,)]
