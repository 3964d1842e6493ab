"""A stream is assembled to what the whole answer says, however many tokens a chunk has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.measuring.verifying.conformance.answers import EventReader, ParsedAnswer, WireError
from slipstream.measuring.verifying.conformance.apis import APIS, Api
from tests.unit.measuring.verifying.conformance.toy_calls import (
    ToyAnswer,
    cut,
    write_stream,
    write_whole,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
ARGUMENTS = st.dictionaries(TEXTS, st.none() | st.integers() | TEXTS | st.lists(TEXTS), max_size=3)
CALLS = st.tuples(
    st.sampled_from(["get_time", "mark"]),
    ARGUMENTS.map(lambda one: json.dumps(one, ensure_ascii=False)),
)
ANSWERS = st.builds(
    ToyAnswer,
    reasoning=TEXTS,
    text=TEXTS,
    calls=st.lists(CALLS, max_size=3),
    cut_off=st.booleans(),
)
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)
ANSWER = ToyAnswer(text="I see: ", calls=[("get_time", '{"city": "東京"}'), ("mark", "{}")])


def assemble(api: Api, stream: bytes, sizes: list[int] | None = None) -> ParsedAnswer:
    reader, assembler = EventReader(), api()
    pieces = [stream] if sizes is None else cut(stream.decode("latin-1"), sizes)
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else piece.encode("latin-1")
        for event in reader.take(data):
            assembler.take(event)
    return assembler.finish()


@pytest.mark.parametrize("api", APIS.values(), ids=list(APIS))
@given(answer=ANSWERS, sizes=SIZES, packets=SIZES)
def test_a_stream_says_what_the_whole_answer_says(
    api: Api, answer: ToyAnswer, sizes: list[int], packets: list[int]
) -> None:
    whole = api.read_whole(write_whole(api.path, answer, [1]))
    streamed = assemble(api, write_stream(api.path, answer, [1], sizes).encode(), packets)
    assert streamed.is_same(whole)
    assert whole.content[:2] == (answer.reasoning, answer.text)
    assert whole.content[2] == [(name, json.loads(text)) for name, text in answer.calls]
    assert len({call.id for call in streamed.calls}) == len(answer.calls)
    assert whole.is_cut_off == answer.cut_off


@pytest.mark.parametrize("api", APIS.values(), ids=list(APIS))
def test_a_stream_that_breaks_off_is_no_answer(api: Api) -> None:
    stream = write_stream(api.path, ANSWER, [1]).encode()
    last = stream.rstrip().rfind(b"\n\n") + 2
    with pytest.raises(WireError, match="the stream ended without"):
        assemble(api, stream[:last])


@pytest.mark.parametrize("api", APIS.values(), ids=list(APIS))
@pytest.mark.parametrize("error", ['{"error": {"message": "no"}}', '{"type": "error", "code": 5}'])
def test_an_error_within_a_stream_is_one(api: Api, error: str) -> None:
    with pytest.raises(WireError, match="an error within the stream"):
        assemble(api, f"event: error\ndata: {error}\n\n".encode())


@pytest.mark.parametrize("data", ["{", "[1]"])
def test_an_event_that_is_no_object_is_an_error(data: str) -> None:
    with pytest.raises(WireError, match="an event is not"):
        assemble(APIS["chat"], f"data: {data}\n\n".encode())


def test_a_name_that_is_sent_twice_is_doubled_as_the_library_does() -> None:
    twice = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    deltas = [{"tool_calls": [twice]}, {"tool_calls": [twice]}]
    stream = "".join(
        f"data: {json.dumps({'choices': [{'delta': delta, 'finish_reason': 'stop'}]})}\n\n"
        for delta in deltas
    )
    answer = assemble(APIS["chat"], f"{stream}data: [DONE]\n\n".encode())
    assert [(call.id, call.name) for call in answer.calls] == [("aa", "ff")]


def test_a_response_must_be_what_its_events_said() -> None:
    stream = write_stream("/v1/responses", ANSWER, [1]).encode()
    with pytest.raises(WireError, match="the deltas are not what"):
        assemble(APIS["responses"], stream.replace(b"function_call_arguments.delta", b"other"))
    with pytest.raises(WireError, match="the finished items are not"):
        assemble(APIS["responses"], stream.replace(b"output_item.done", b"other"))


def test_a_delta_for_a_block_that_is_closed_is_an_error() -> None:
    events = write_stream("/v1/messages", ANSWER, [1]).split("\n\n")
    stop = next(at for at, event in enumerate(events) if "content_block_stop" in event)
    late = [*events[: stop - 1], events[stop], events[stop - 1], *events[stop + 1 :]]
    with pytest.raises(WireError, match="a delta for block 0, which is not open"):
        assemble(APIS["messages"], "\n\n".join(late).encode())


def test_a_call_without_deltas_has_no_arguments() -> None:
    answer = ToyAnswer(calls=[("get_time", "")])
    (call,) = assemble(APIS["messages"], write_stream("/v1/messages", answer, [1]).encode()).calls
    assert call.arguments == "{}"
