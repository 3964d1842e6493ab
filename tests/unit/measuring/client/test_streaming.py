"""A stream's bytes tell when tokens came, how many and what became of drafts, or what is wrong."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.measuring.client.streaming import StreamReader
from tests.unit.measuring.client.stream_server import ROLE, STOP, count, cut, say, write_events

# As vLLM 0.32 sends it with --per-request-spec-decode-metrics summary.
METRICS = {
    "speculative_decoding": {
        "mean_acceptance_length": 1.7142857142857144,
        "draft_acceptance_rate": 0.23809523809523808,
        "acceptance_histogram": [4, 2, 0, 1],
        "num_spec_steps": 7,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 21,
        "num_spec_tokens": 3,
    }
}
STREAM = write_events(
    ROLE,
    say("Grüß", token_ids=[7, 8]),
    say(" dich", token_ids=[9]),
    STOP,
    count(11, 3, usage={"prompt_tokens_details": {"cached_tokens": 4}}, metrics=METRICS),
    "[DONE]",
)


def read(*events: dict[str, Any] | str | bytes) -> StreamReader:
    """Read events of which the first comes after one second, the second after two."""
    reader = StreamReader()
    for second, event in enumerate(events, start=1):
        data = event if isinstance(event, bytes) else write_events(event)
        reader.take(data, float(second))
    return reader


def portray(reader: StreamReader) -> tuple[object, ...]:
    return (
        "".join(reader.texts),
        reader.token_ids,
        reader.finish_reason,
        reader.usage,
        reader.drafts,
        reader.find_fault(),
    )


def test_the_clock_stops_at_tokens_and_neither_at_the_role_nor_at_the_usage() -> None:
    reader = read(ROLE, say("a"), say("b"), b": keep-alive\n\n", say("c"), STOP, count(5, 9))
    assert (reader.first_at, reader.last_at, reader.longest_pause) == (2.0, 5.0, 2.0)
    assert reader.find_fault() is None


def test_one_chunk_with_many_tokens_has_no_pause() -> None:
    reader = read(ROLE, say("a whole block", token_ids=[1, 2, 3, 4]), STOP, count(5, 4))
    assert (reader.first_at, reader.last_at, reader.longest_pause) == (2.0, 2.0, None)


@pytest.mark.parametrize(
    "token",
    [
        say("", token_ids=[3]),  # half of a character
        {"choices": [{"delta": {"reasoning": "hm"}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"text": "hm"}]},
    ],
)
def test_a_token_need_not_be_a_chats_text(token: dict[str, Any]) -> None:
    assert read(ROLE, token).first_at == 2.0


def test_a_completion_tells_its_text_in_the_choice() -> None:
    reader = read(
        {"choices": [{"text": "one", "token_ids": [1], "prompt_token_ids": [5]}]},
        {"choices": [{"text": " two", "token_ids": [2], "finish_reason": "length"}]},
        count(1, 2),
    )
    assert portray(reader)[:3] == ("one two", [1, 2], "length")
    assert (reader.first_at, reader.last_at) == (1.0, 2.0)


def test_drafts_are_told_beside_the_usage() -> None:
    drafts = read(STREAM).drafts
    assert (drafts["drafts"], drafts["drafted"], drafts["accepted"]) == (7, 21, 5)
    assert drafts["accepted_by_position"] == (3, 1, 1)
    assert read(ROLE, say("a"), STOP, count(1, 1)).drafts["drafts"] == 0


def test_chunks_that_arrive_together_are_still_two() -> None:
    chunks: list[tuple[float, list[int], str]] = []
    StreamReader(lambda now, ids, text: chunks.append((now, list(ids), text))).take(STREAM, 3.0)
    assert chunks == [(3.0, [7, 8], "Grüß"), (3.0, [9], " dich")]


@given(some.lists(some.integers(0, 900)), some.booleans())
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int], crlf: bool) -> None:
    data = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    assert portray(read(*cut(data, cuts))) == portray(read(STREAM))
    assert portray(read(STREAM))[:3] == ("Grüß dich", [7, 8, 9], "stop")


FULL = json.dumps({"error": {"message": "no room", "type": "InternalServerError", "code": 500}})


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ((ROLE, say("a"), FULL, "[DONE]"), "error in the stream: {'message': 'no room'"),
        (({"object": "error", "message": "old style"},), "error in the stream: .*old style"),
        ((ROLE, say("a"), "[DONE]"), "ended with finish reason None"),
        ((say("a", finish_reason="abort"), count(1, 1)), "ended with finish reason abort"),
        ((say("a"), STOP, "[DONE]"), "reported no usage"),
        (("{half",), "cannot read .*{half"),
        (('["no", "object"]',), "cannot read .*no"),
        (('{"choices": ["x"]}',), "cannot read .*choices"),
    ],
)
def test_what_is_wrong_is_said(events: tuple[dict[str, Any] | str, ...], fault: str) -> None:
    assert re.search(fault, read(*events).find_fault() or "")
