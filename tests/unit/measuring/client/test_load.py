"""Loads keep their pace and measure each request; one that fails is a sample, not an end."""

import re
import ssl
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.client import streaming
from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.load import draw_arrivals, run_closed_loop, run_open_loop
from slipstream.measuring.client.sample import Sample
from slipstream.serving.access.tls import TlsCertificate
from tests.unit.measuring.client.stream_server import (
    CHUNKED,
    LAST_CHUNK,
    ROLE,
    STOP,
    answer_plainly,
    answer_with,
    count,
    frame,
    refuse,
    run_stream_server,
    say,
    write_events,
)
from tests.unit.serving.access.certificates import make_pair


def make_requests(number: int, **more: Any) -> list[Request]:
    """Make requests that can be told apart by their `max_tokens`."""
    return [
        Request(
            prompt_id=f"p{index}",
            kind="chat",
            messages=({"role": "user", "content": "hi"},),
            max_tokens=index,
            **more,
        )
        for index in range(number)
    ]


def measure_one(url: str, **more: Any) -> Sample:
    (sample,) = run_closed_loop(Endpoint(url), make_requests(1, **more), concurrency=1)
    return sample


def test_a_chat_is_streamed_under_the_servers_own_model_name() -> None:
    with run_stream_server(lambda _: answer_plainly()) as server:
        sample = measure_one(server.url, extra={"ignore_eos": True, "return_token_ids": None})
    assert [head.split(" HTTP")[0] for head in server.heads] == [
        "GET /v1/models",
        "POST /v1/chat/completions",
    ]
    assert server.bodies == [
        {
            "messages": [{"role": "user", "content": "hi"}],
            "model": "the-model",
            "max_tokens": 0,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert (sample.prompt_id, sample.kind, sample.concurrency) == ("p0", "chat", 1)
    assert (sample.prompt_tokens, sample.output_tokens, sample.text) == (3, 1, "hi")
    assert (sample.error, sample.finish_reason, sample.seconds_per_token) == (None, "stop", None)


def test_the_times_are_those_of_the_tokens() -> None:
    def linger(_: dict[str, Any]) -> Iterator[bytes]:
        yield CHUNKED + frame(write_events(ROLE))
        for text in ("a", "b", "c"):
            time.sleep(0.1)
            yield frame(write_events(say(text, token_ids=[1, 2])))
        time.sleep(0.2)
        yield frame(write_events(STOP, count(3, 6), "[DONE]")) + LAST_CHUNK

    with run_stream_server(linger) as server:
        started = time.monotonic()
        sample = measure_one(server.url)
        passed = time.monotonic() - started
    assert sample.first_token_seconds is not None
    assert sample.longest_pause_seconds is not None
    decoding = sample.seconds - sample.first_token_seconds
    assert sample.first_token_seconds >= 0.1
    assert sample.seconds <= passed - 0.2
    assert decoding / 2 <= sample.longest_pause_seconds <= decoding
    assert sample.seconds_per_token == decoding / 5


def test_as_many_are_in_flight_as_asked_over_connections_that_are_kept() -> None:
    together = threading.Barrier(3)

    def meet(_: dict[str, Any]) -> Iterator[bytes | None]:
        together.wait(timeout=5)
        yield from answer_plainly()

    with run_stream_server(meet) as server:
        endpoint = Endpoint(server.url, model="mine")
        samples = run_closed_loop(endpoint, make_requests(9), concurrency=3)
    assert [sample.prompt_id for sample in samples] == [f"p{number}" for number in range(9)]
    assert {(sample.error, sample.concurrency) for sample in samples} == {(None, 3)}
    assert {body["model"] for body in server.bodies} == {"mine"}
    assert server.connections == 1 + 3  # the first looks whether a server is there


def test_requests_arrive_by_the_clock_whatever_is_in_flight() -> None:
    last_is_in = threading.Event()

    def hold(body: dict[str, Any]) -> Iterator[bytes | None]:
        if body["max_tokens"] == 3:
            last_is_in.set()
        assert last_is_in.wait(timeout=5)
        yield from answer_plainly()

    arrivals = (0.0, 0.1, 0.15, 0.3)
    with run_stream_server(hold) as server:
        samples = run_open_loop(Endpoint(server.url), make_requests(4), arrivals=arrivals)
    assert [sample.error for sample in samples] == [None] * 4
    assert [sample.concurrency for sample in samples] == [1, 2, 3, 4]
    assert all(
        sample.began_at >= arrival for sample, arrival in zip(samples, arrivals, strict=True)
    )


def test_arrivals_are_drawn_at_a_rate_and_the_same_for_a_seed() -> None:
    arrivals = draw_arrivals(4000, rate=8, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 8, rel=0.05)  # as of Poisson, not a clock
    assert draw_arrivals(4000, rate=8, seed=1) == arrivals
    assert draw_arrivals(4000, rate=8, seed=2) != arrivals


CUT: list[bytes | None] = [CHUNKED, frame(write_events(ROLE, say("a"))), None]
FAILURES: dict[str, tuple[list[bytes | None], str]] = {
    "refused": (
        refuse("400 Bad Request", b'{"error": "too long"}'),
        'answered 400: {"error": "too',
    ),
    "cut": (CUT, "ConnectionError: the server closed the connection"),
    "silent": ([None], "ConnectionError: the server closed the connection"),
    "told": (answer_with(ROLE, {"error": {"message": "no room"}}), "error in the stream"),
    "no http": ([b"what?\r\n\r\n"], r"not HTTP/1\.1"),
    "odd text": (
        answer_with(say(["a"]), STOP, count(1, 1)),
        "cannot read the answer: .*list found",
    ),
    "odd usage": (
        answer_with(say("a"), STOP, count(1, -1, usage={"completion_tokens": "many"})),
        "cannot read the answer: .*output_tokens",
    ),
    "odd details": (
        answer_with(say("a"), STOP, count(1, 1, usage={"prompt_tokens_details": [1]})),
        "cannot read the answer: 'list'",
    ),
    "redirected": (refuse("307 Temporary Redirect", b""), "answered 307"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_request_that_fails_is_a_sample_and_the_load_goes_on(name: str) -> None:
    answer, error = FAILURES[name]
    with run_stream_server(
        lambda body: answer if body["max_tokens"] == 1 else answer_plainly()
    ) as server:
        samples = run_closed_loop(Endpoint(server.url), make_requests(4), concurrency=2)
    assert [sample.error is None for sample in samples] == [True, False, True, True]
    assert re.search(error, samples[1].error or "")
    assert samples[1].text == ("a" if name == "cut" else "")


def test_a_server_that_is_not_there_ends_it_at_once() -> None:
    with run_stream_server(lambda _: answer_plainly()) as server:
        pass
    with pytest.raises(EngineError, match=f"no answer from {server.url}: ConnectError"):
        measure_one(server.url)
    with pytest.raises(EngineError, match=f"no answer from {server.url}: ConnectionRefused"):
        run_closed_loop(Endpoint(server.url, model="m"), make_requests(1), concurrency=1)


def test_a_server_that_wants_a_key_says_so_at_once() -> None:
    with run_stream_server(lambda _: answer_plainly()) as server:
        server.status = "401 Unauthorized"
        with pytest.raises(EngineError, match=r"/v1/models of .* answered 401") as failed:
            run_closed_loop(Endpoint(server.url, key="sk-1"), make_requests(1), concurrency=1)
    assert "SLIPSTREAM_API_KEY" in failed.value.hint
    assert "sk-1" not in f"{failed.value}{failed.value.details}{failed.value.hint}"


def test_a_server_that_falls_silent_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "SILENCE_SECONDS", 0.6)
    over = threading.Event()

    def speak_then_hang(body: dict[str, Any]) -> Iterator[bytes | None]:
        yield CHUNKED
        for _ in range(5):
            time.sleep(0.15)
            yield frame(write_events(say("a")))
        if body["max_tokens"] == 1:
            over.wait(timeout=30)
        yield frame(write_events(STOP, count(1, 5), "[DONE]")) + LAST_CHUNK

    with run_stream_server(speak_then_hang) as server:
        samples = run_closed_loop(Endpoint(server.url), make_requests(2), concurrency=2)
        over.set()
    assert [sample.error for sample in samples] == [None, "no data for 0.6 s"]


def test_the_key_goes_along_and_a_proxy_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with run_stream_server(lambda _: answer_plainly()) as server:
        (sample,) = run_closed_loop(
            Endpoint(f"{server.url}/behind/v1/", key="sk-1"), make_requests(1), concurrency=1
        )
    assert sample.error is None
    assert ["Authorization: Bearer sk-1" in head for head in server.heads] == [True, True]
    assert server.heads[1].startswith("POST /behind/v1/chat/completions HTTP/1.1")


def test_a_server_behind_tls_is_known_by_an_authority_or_by_its_own_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, other = make_pair(tmp_path / "ours", "localhost"), make_pair(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.file, pair.key)
    long = "x" * 200_000

    def measure(certificate: TlsCertificate | None) -> Sample:
        endpoint = Endpoint(server.url, certificate=certificate)
        return run_closed_loop(endpoint, make_requests(1), concurrency=1)[0]

    with run_stream_server(lambda _: answer_plainly(long), context) as server:
        assert measure(TlsCertificate(pair.file, pair.key)).error is None
        for certificate in (None, TlsCertificate(other.file, other.key)):
            with pytest.raises(EngineError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                measure(certificate)
            assert "SSL_CERT_FILE=" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.file))
        sample = measure(None)
    assert (sample.error, sample.text == long) == (None, True)
