"""`chat` as a user types it: turns, figures and errors; no server acts on the terminal."""

import io
import json
import os
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.cli.screen import SILENT_SECONDS
from slipstream.planning.settings import Choice
from slipstream.serving.run import Terms, read_process
from tests.unit.cli.serving.typist import PATIENCE_SECONDS, open_terminal
from tests.unit.clients.api_server import MODEL
from tests.unit.clients.stand_in import StandIn, run_stand_in
from tests.unit.measuring.client.stream_server import (
    CHUNKED,
    LAST_CHUNK,
    ROLE,
    STOP,
    StreamServer,
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
from tests.unit.serving.kept_runs import PLAN, keep
from tests.unit.steering import lines

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
HOSTILE = "a\x1b]0;owned\x07\x9b2J\u202eb\tc\r"
HARMLESS = "a\ufffd]0;owned\ufffd\ufffd2J\ufffdb\tc\ufffd"
# As vLLM sends them: the prompt's step, one with two of its draft accepted, one with none.
WORDS = ("the", "quick", "brown", "fox", "ran", "</s>")
EVENTS = (
    ROLE,
    say("the", token_ids=[0]),
    say(" quick brown fox", token_ids=[1, 2, 3]),
    say(" ran", token_ids=[4]),
    {"choices": [{"delta": {}, "finish_reason": "stop", "token_ids": [5]}]},
    count(7, 6),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def chat(*words: str, typed: str, monkeypatch: Patch, code: int = 0) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert run(["chat", *words], {}) == code


def read_events(capsys: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@contextmanager
def serve(home: Path, stand_in: StandIn, *ledger: bytes, **changes: Any) -> Iterator[None]:
    """Keep a live run whose engine is the stand-in, and write a line as it answers each turn."""
    target = home / "model"
    target.mkdir()
    make_tokenizer(target / "tokenizer.json")
    settings = {
        "port": Choice(stand_in.port, "user", ""),
        "host": Choice("127.0.0.1", "user", ""),
        "served_names": Choice((MODEL,), "user", ""),
    }
    plan = PLAN.change(**settings).model_copy(update={"target": str(target)})
    folder, _ = keep(
        home / "state" / "slipstream" / "runs",
        "live",
        **{
            "plan": plan,
            "supervisor": read_process(os.getpid()),
            "engine": stand_in.process,
            "url": stand_in.url,
            **changes,
        },
    )
    folder.ledger.write_bytes(lines.write(id="stand-in", tokens=1, steps=1) if ledger else b"")

    def write() -> None:
        for number, line in enumerate(ledger, start=1):
            until = time.monotonic() + PATIENCE_SECONDS
            while len(stand_in.read_requests()) < number and time.monotonic() < until:
                time.sleep(0.01)
            with folder.ledger.open("ab") as file:
                file.write(lines.write(id="somebody-else") + line)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def make_tokenizer(file: Path) -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="the"))
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(file))


def test_a_conversation_keeps_its_turns_until_it_begins_anew(
    monkeypatch: Patch, capsys: Capture
) -> None:
    with run_stream_server(lambda body: answer_plainly(f"{len(body['messages'])}")) as server:
        typed = "one\n\ntwo  \n/new\nthree\r\n/exit\nfour\n"
        chat(server.url, "--max-tokens", "9", typed=typed, monkeypatch=monkeypatch)
    shown = capsys.readouterr()
    assert shown.out == "1\n3\n1\n"
    assert "\x1b" not in shown.out + shown.err
    assert [[one["content"] for one in body["messages"]] for body in server.bodies] == [
        ["one"],
        ["one", "1", "two  "],
        ["three"],
    ]
    assert {(body["model"], body["max_tokens"]) for body in server.bodies} == {("the-model", 9)}
    assert "temperature" not in server.bodies[0]


def test_plain_asks_the_last_message_again_by_a_header(monkeypatch: Patch, capsys: Capture) -> None:
    texts = iter(["A", "B", "B", "C"])
    with run_stream_server(lambda _: answer_plainly(next(texts))) as server:
        typed = "one\ntwo\n/plain\n/plain\n"
        chat(server.url, "--temperature", "0", typed=typed, monkeypatch=monkeypatch)
    shown = capsys.readouterr()
    asked = [[one["content"] for one in body["messages"]] for body in server.bodies]
    assert asked == [["one"], *[["one", "A", "two"]] * 3]
    heads = [head.lower() for head in server.heads if head.startswith("POST")]
    assert ["x-slipstream-drafts: off" in head for head in heads] == [False, False, True, True]
    assert shown.err.count("plain: ") == 2
    assert shown.err.index("the same text") < shown.err.index(
        "different text than before (after a near-tie,"
    )
    assert server.bodies[0]["temperature"] == 0


def test_texts_that_are_sampled_differ_by_chance(monkeypatch: Patch, capsys: Capture) -> None:
    texts = iter(["A", "B"])
    with run_stream_server(lambda _: answer_plainly(next(texts))) as server:
        chat(server.url, typed="one\n/plain\n", monkeypatch=monkeypatch)
    said = "different text than before (sampling: compare with --temperature 0)\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/plain", "there is no message to repeat"),
        ("/quit", "no command /quit"),
        ("/set max_tokens 24", "no command /set"),
    ],
)
def test_a_command_that_cannot_be_done_is_not_sent(
    line: str, said: str, monkeypatch: Patch, capsys: Capture
) -> None:
    with run_stream_server(lambda _: answer_plainly()) as server:
        chat(server.url, typed=f"{line}\n", monkeypatch=monkeypatch, code=1)
        chat(server.url, typed="/etc/passwd holds what?\n/help\n", monkeypatch=monkeypatch)
    shown = capsys.readouterr().err
    assert said in shown
    assert "/new    start a new conversation" in shown
    assert len(server.bodies) == 1


@pytest.mark.parametrize("where", ["text", "refusal", "stream"])
def test_nothing_of_a_server_acts_on_the_terminal(
    where: str, monkeypatch: Patch, capsys: Capture
) -> None:
    answers: dict[str, tuple[list[bytes | None], int]] = {
        "text": (answer_with(ROLE, say(HOSTILE), STOP, count(3, 1)), 0),
        "refusal": (refuse("400 Bad", HOSTILE.encode()), 3),
        "stream": (answer_with(ROLE, json.dumps({"error": HOSTILE}, ensure_ascii=False)), 3),
    }
    answer, code = answers[where]
    with run_stream_server(lambda _: answer) as server:
        chat(server.url, typed="hi\n", monkeypatch=monkeypatch, code=code)
        shown = capsys.readouterr()
        chat(server.url, "--json", typed="hi\n", monkeypatch=monkeypatch, code=code)
    document = capsys.readouterr()
    for text in (shown.out, shown.err, document.out, document.err):
        assert not [sign for sign in text if not (sign.isprintable() or sign in "\n\t\ufffd")]
    if where == "text":
        assert shown.out == f"{HARMLESS}\n"
        assert json.loads(document.out.splitlines()[-1])["text"] == HOSTILE


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refuse("401 Unauthorized", b"who?"), "hint: put the server's key into"),
        (refuse("404 Not Found", b"no model the-model"), "hint: slipstream chat again"),
        (refuse("400 Bad Request", b"longer than the context"), "hint: /new"),
        (refuse("503 Unavailable", b""), "hint: try again in a moment"),
        (
            [CHUNKED, frame(write_events(ROLE, say("half"))), None],
            "the answer was interrupted: Remote",
        ),
        (
            answer_with(ROLE, say("half")),
            "was interrupted: the stream ended with finish reason None",
        ),
        (
            answer_with(say("a"), STOP, count(1, -1, usage={"completion_tokens": "x"})),
            "was interrupted",
        ),
        ([None], "no answer from"),
    ],
)
def test_a_failed_answer_ends_a_pipe_with_what_to_type(
    answer: Iterable[bytes | None], said: str, monkeypatch: Patch, capsys: Capture
) -> None:
    with run_stream_server(lambda _: answer) as server:
        chat(server.url, typed="hi\nagain\n", monkeypatch=monkeypatch, code=3)
    assert said in capsys.readouterr().err
    assert len(server.bodies) == 1


def test_without_a_server_it_says_what_to_type(
    home: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    chat(typed="", monkeypatch=monkeypatch, code=1)
    assert "hint: slipstream serve TARGET --detach; slipstream chat" in capsys.readouterr().err
    chat("Qwen/Qwen3-8B", typed="", monkeypatch=monkeypatch, code=1)
    assert "hint: slipstream serve Qwen/Qwen3-8B --detach" in capsys.readouterr().err
    folder, _ = keep(home / "state" / "slipstream" / "runs", "over", engine=None)
    chat("over", typed="", monkeypatch=monkeypatch, code=1)
    assert f"hint: slipstream serve {folder.path} --detach" in capsys.readouterr().err


def test_an_input_that_is_no_text_is_an_error(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    with run_stream_server(lambda _: answer_plainly()) as server:
        assert run(["chat", server.url], {}) == 1
    assert "hint: iconv" in capsys.readouterr().err


def test_a_temperature_below_zero_is_a_usage_error(monkeypatch: Patch, capsys: Capture) -> None:
    for text in ("-1", "nan", "warm"):
        chat(f"--temperature={text}", typed="", monkeypatch=monkeypatch, code=2)
    assert capsys.readouterr().err.count("is not a number of zero or more") == 3


def test_a_key_and_a_certificate_are_those_of_other_clients(
    home: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    pair = make_pair(home, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.file, pair.key)
    file = home / "alice.key"
    file.write_text("the-secret\n")
    words = ("--key", str(file))
    with run_stream_server(lambda _: answer_plainly(), context) as server:
        chat(server.url, *words, typed="hi\n", monkeypatch=monkeypatch, code=3)
        assert "hint: export SSL_CERT_FILE=" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.file))
        chat(server.url, *words, typed="hi\n", monkeypatch=monkeypatch)
    assert {"authorization: bearer the-secret" in head.lower() for head in server.heads} == {True}
    assert capsys.readouterr().out == "hi\n"


def test_a_run_counts_its_steps_and_marks_what_was_drafted(
    home: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    line = lines.write(id="stand-in", tokens=6, steps=4, drafts=3, accepted=[1, 1])
    with run_stand_in(home, events=EVENTS) as engine, serve(home, engine, line):
        chat("--json", typed="hi\n", monkeypatch=monkeypatch)
    *parts, answer = read_events(capsys)
    assert [(part["text"], part["tokens"], part["drafted"]) for part in parts] == [
        ("the", 1, 0),
        (" quick brown fox", 3, len(" quick brown")),
        (" ran", 1, 0),
        ("", 1, 0),
    ]
    assert answer["text"] == "the quick brown fox ran"
    figures = ("output_tokens", "chunks", "steps", "accepted")
    assert [answer[name] for name in figures] == [6, 4, 4, 2]


def test_steps_that_came_joined_are_reported(home: Path) -> None:
    line = lines.write(id="stand-in", tokens=6, steps=5, drafts=4, accepted=[1])
    with (
        run_stand_in(home, events=EVENTS) as engine,
        serve(home, engine, line),
        open_terminal("chat", NO_COLOR="") as typist,
    ):
        typist.read_until(lambda shown: shown.endswith(b"> "))
        typist.type(b"hi\n")
        typist.read_until(lambda shown: shown.count(b"> ") == 2)
        typist.type(b"\x04")
        assert typist.child.wait(PATIENCE_SECONDS) == 0
    shown = typist.shown.decode()
    assert "accepted draft tokens are green" in shown
    assert "the\x1b[32m quick brown\x1b[0m fox ran\r\n" in shown
    assert "1.20 tokens per step" in shown
    assert "1 of 5 steps arrived together with others" in shown


def test_tokens_that_are_not_the_texts_are_not_marked(
    home: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    odd = (say("the", token_ids=[0]), say("fox ran", token_ids=[3, 4]), say("x", token_ids=[-1]))
    with run_stand_in(home, events=(*odd, STOP, count(7, 4))) as engine, serve(home, engine):
        chat("--json", typed="hi\n", monkeypatch=monkeypatch)
    *parts, answer = read_events(capsys)
    assert [part["drafted"] for part in parts] == [0, None, None]
    # No line of the ledger came: what is known is a bound.
    assert (answer["steps"], answer["chunks"]) == (None, 3)


def test_a_server_elsewhere_counts_by_the_stream_or_not_at_all(
    monkeypatch: Patch, capsys: Capture
) -> None:
    drafting = {"acceptance_histogram": [1, 0, 1], "num_spec_steps": 2}
    metrics = {"speculative_decoding": {**drafting, "num_accepted_draft_tokens": 2}}
    ends = iter([count(7, 6), count(7, 6, metrics=metrics)])
    with run_stream_server(lambda _: answer_with(*EVENTS[:-1], next(ends))) as server:
        chat(server.url, typed="a\n/plain\n", monkeypatch=monkeypatch)
    shown = capsys.readouterr().err
    assert "6 tokens, " in shown
    assert "at most 1.50 tokens per step" in shown
    assert ", 1.50 tokens per step" in shown
    assert "it was drafted anyway" in shown


def test_a_key_goes_to_the_runs_own_engine_only(
    home: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("SLIPSTREAM_API_KEY", "the-secret")
    me = read_process(os.getpid())
    with run_stand_in(home, events=EVENTS) as engine, serve(home, engine, engine=me):
        chat(typed="hi\n", monkeypatch=monkeypatch, code=3)
        assert engine.read_requests() == []
    assert "this run's engine does not listen" in capsys.readouterr().err


def test_a_run_with_keys_is_not_asked_without_one(
    home: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    terms = Terms(keys_file=home / "keys.json", keys_required=True)
    with run_stand_in(home, events=EVENTS) as engine, serve(home, engine, terms=terms):
        chat(typed="hi\n", monkeypatch=monkeypatch, code=1)
        assert engine.read_requests() == []
    assert "slipstream chat --key chat.key" in capsys.readouterr().err


def think(_: dict[str, Any]) -> Iterator[bytes | None]:
    """Think for longer than a terminal is silent."""
    yield CHUNKED + frame(write_events({"choices": [{"delta": {"reasoning": "hm"}}]}))
    time.sleep(2 * SILENT_SECONDS)
    yield frame(write_events(say("Yes."), STOP, count(3, 2)))
    yield LAST_CHUNK


def test_thoughts_are_told_and_not_shown() -> None:
    with run_stream_server(think) as server, open_terminal("chat", server.url) as typist:
        typist.read_until(lambda shown: shown.endswith(b"> "))
        typist.type(b"why?\n")
        typist.read_until(lambda shown: b"the model thinks" in shown)
        typist.read_until(lambda shown: b"2 tokens" in shown)
        typist.type(b"/exit\n")
        assert typist.child.wait(PATIENCE_SECONDS) == 0
    assert b"hm" not in typist.shown


def hang(server: StreamServer, body: dict[str, Any]) -> Iterable[bytes | None]:
    """Begin an answer and never end it, the first time."""
    if len(server.bodies) > 1:
        yield from answer_plainly(body["messages"][-2]["content"])
        return
    yield CHUNKED + frame(write_events(ROLE, say("half ", token_ids=[1, 2])))
    threading.Event().wait(PATIENCE_SECONDS)


def test_ctrl_c_ends_the_answer_and_ctrl_d_the_program() -> None:
    with (
        run_stream_server(lambda body: hang(server, body)) as server,
        open_terminal("chat", server.url, NO_COLOR="1") as typist,
    ):
        typist.read_until(lambda shown: shown.endswith(b"> "))
        typist.type(b"one\n")
        typist.read_until(lambda shown: b"half" in shown)
        typist.type(b"\x03")
        typist.read_until(lambda shown: b"stopped after 2 tokens" in shown)
        typist.read_until(lambda shown: shown.count(b"> ") == 2)
        typist.interrupt(lambda shown: b"Ctrl-D or /exit leaves" in shown)
        typist.type(b"/nonsense\n")
        typist.read_until(lambda shown: b"no command /nonsense" in shown)
        typist.type(b"two\n")
        typist.read_until(lambda shown: shown.count(b"half") == 2 and shown.endswith(b"> "))
        typist.type(b"\x04")
        assert typist.child.wait(PATIENCE_SECONDS) == 0
    assert b"\x1b[3" not in typist.shown
    assert [one["content"] for one in server.bodies[1]["messages"]] == ["one", "half ", "two"]
