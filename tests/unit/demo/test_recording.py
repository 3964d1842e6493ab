"""Every token of a stream has its moment, its text and its origin."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from slipstream.demo.recording import ATTEMPTS, Chunk, Take, mark_tokens, record
from slipstream.errors import EngineError
from tests.unit.demo.pieces import decode, make_take
from tests.unit.measuring.client.stream_server import (
    CHUNKED,
    LAST_CHUNK,
    ROLE,
    answer_with,
    count,
    frame,
    refuse,
    run_stream_server,
    say,
    write_events,
)

DRAFTS = {
    "metrics": {
        "speculative_decoding": {
            "num_spec_steps": 2,
            "num_draft_tokens": 14,
            "num_accepted_draft_tokens": 3,
            "acceptance_histogram": [0, 1, 1],
        }
    }
}


def give(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return say(text, token_ids=list(map(ord, text)), finish_reason=finish_reason)


EVENTS = (ROLE, give("a"), give("bcd"), give("ef", "stop"), count(9, 6, **DRAFTS))


def pace(pieces: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Send pieces one after the other."""
    for piece in pieces:
        yield piece
        time.sleep(0.002)


def take_of(answer: Iterable[bytes | None]) -> tuple[Take, dict[str, Any]]:
    pieces = list(answer)
    with run_stream_server(lambda _: pace(pieces)) as server:
        return record(server.url, make_take().prompt, decode), server.bodies[0]


def test_all_tokens_of_a_chunk_but_the_last_were_drafted() -> None:
    taken, asked = take_of(answer_with(*EVENTS))
    assert [token.text for token in taken.tokens if token.drafted] == ["b", "c", "e"]
    assert "".join(token.text for token in taken.tokens) == "abcdef"
    assert (taken.drafts, taken.accepted) == (2, 3)
    seconds = [token.seconds for token in taken.tokens]
    assert 0 < seconds[0] <= seconds[1] == seconds[3] <= seconds[5] == taken.seconds
    assert (asked["temperature"], asked["max_tokens"], asked["stream"]) == (0, 80, True)


def test_chunks_that_arrive_together_are_still_two() -> None:
    apart, _ = take_of(answer_with(*EVENTS))
    first, rest = write_events(*EVENTS[:2]), write_events(*EVENTS[2:], "[DONE]")
    together, _ = take_of([CHUNKED, frame(first), frame(rest), LAST_CHUNK])
    assert together.tokens[1].seconds == together.tokens[-1].seconds
    assert [one.drafted for one in together.tokens] == [one.drafted for one in apart.tokens]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refuse("400 Bad Request", b"too long"), "prose was not answered: too long"),
        (answer_with(ROLE, give("ab")), "finish reason None"),
        (answer_with(ROLE, count(9, 0)), "finish reason None"),
        (answer_with(ROLE, give("", "stop"), count(9, 0)), "no token"),
        ([CHUNKED, None], "no answer from http://127.0.0.1"),
    ],
)
def test_an_answer_that_is_none_is_an_engine_error(answer: Any, told: str) -> None:
    with pytest.raises(EngineError, match=told):
        take_of(answer)


WHOLE = list(answer_with(ROLE, give("abc", "stop"), count(9, 3)))


def test_an_answer_that_came_at_once_is_asked_for_again() -> None:
    answers = iter([WHOLE, list(answer_with(*EVENTS))])
    with run_stream_server(lambda _: pace(next(answers))) as server:
        taken = record(server.url, make_take().prompt, decode)
    assert "".join(token.text for token in taken.tokens) == "abcdef"
    with (
        run_stream_server(lambda _: pace(WHOLE)) as server,
        pytest.raises(EngineError, match="for prose came in one piece, 3 times"),
    ):
        record(server.url, make_take().prompt, decode)
    assert len(server.bodies) == ATTEMPTS


def test_tokens_that_waited_for_each_other_were_not_drafted_by_a_plain_engine() -> None:
    taken, _ = take_of(answer_with(ROLE, give("abc"), give("de", "stop"), count(9, 5)))
    assert [token.drafted for token in taken.tokens] == [False] * 5


def test_what_came_with_the_first_token_took_no_time_after_it() -> None:
    chunks = [Chunk(0.5, (1, 2, 3)), Chunk(0.7, (4,)), Chunk(0.9, (5,))]
    tokens = mark_tokens(chunks, decode, drafted=True)
    taken = make_take().model_copy(update={"tokens": tokens})
    assert taken.seconds_per_token == pytest.approx(0.2)


def test_a_sign_of_several_tokens_comes_with_its_last() -> None:
    heart = "I \N{BLACK HEART SUIT}!".encode()
    chunks = [Chunk(float(at), (byte,)) for at, byte in enumerate(heart)]
    tokens = mark_tokens(chunks, lambda ids: bytes(ids).decode(errors="replace"), drafted=False)
    assert [token.text for token in tokens] == [
        *("I", " ", "", "", "\N{BLACK HEART SUIT}", "!"),
    ]


def test_the_time_of_a_token_leaves_the_prompt_out() -> None:
    taken = make_take("abcde")
    assert taken.seconds == pytest.approx(0.9)
    assert taken.seconds_per_token == pytest.approx(0.1)
    assert Take.model_validate_json(taken.to_json()) == taken
