"""HTTP/1.1 is read whole however it is cut, and a connection is kept only where it may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.measuring.client.wire import AnswerReader
from tests.unit.measuring.client.stream_server import CHUNKED, LAST_CHUNK, cut, frame

bodies = some.lists(some.binary(min_size=1, max_size=40), max_size=6)


def feed(*pieces: bytes) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    return reader, b"".join([reader.feed(piece) for piece in pieces])


@given(bodies, some.lists(some.integers(0, 400)))
def test_chunks_are_joined_wherever_they_are_cut(body: list[bytes], places: list[int]) -> None:
    data = CHUNKED + b"".join(map(frame, body)) + LAST_CHUNK
    reader, read = feed(*cut(data, places))
    assert read == b"".join(body)
    assert (reader.status, reader.complete, reader.keeps) == (200, True, True)
    assert not feed(data[:-1])[0].complete


@given(some.binary(max_size=40), some.lists(some.integers(0, 100)))
def test_a_length_says_where_a_body_ends(body: bytes, places: list[int]) -> None:
    data = b"HTTP/1.1 429 Too Many\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    reader, read = feed(*cut(data, places))
    assert (reader.status, reader.complete, read) == (429, True, body)


def test_without_either_the_connections_end_is_the_bodys() -> None:
    reader, read = feed(b"HTTP/1.0 200 OK\r\n\r\nab", b"cd")
    assert (reader.complete, reader.keeps, read) == (False, False, b"abcd")
    reader.end()
    assert reader.complete


def test_a_chunked_body_that_the_connections_end_cuts_is_not_complete() -> None:
    reader, _ = feed(CHUNKED, frame(b"abc"))
    reader.end()
    assert not reader.complete


@pytest.mark.parametrize("extension", [b"5;name=value\r\nhello\r\n", b"05\r\nhello\r\n"])
def test_a_chunks_size_may_have_company(extension: bytes) -> None:
    assert feed(CHUNKED, extension)[1] == b"hello"


def test_a_server_that_will_close_is_believed() -> None:
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n")
    assert feed(head, LAST_CHUNK)[0].keeps is False


@pytest.mark.parametrize("data", [b"SSH-2.0-x y\r\n\r\n", b"\x00\r\n\r\n", CHUNKED + b"zz\r\n"])
def test_something_else_than_http_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"SSH|invalid literal|not enough values"):
        feed(data)
