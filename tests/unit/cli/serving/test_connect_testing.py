"""`connect --test` and `--url`: a server is asked as the client would, and may say anything."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.clients.catalogue import CLIENTS
from slipstream.planning.settings import Choice
from slipstream.serving.run import Process, Terms, read_process
from tests.unit.cli.serving.test_connect import (
    SECRET,
    TOOLS,
    Capture,
    connect,
    home,
    make_keys,
    read_connection,
    serve,
)
from tests.unit.clients.api_server import CONTEXT, MODEL
from tests.unit.clients.stand_in import run_stand_in

__all__ = ["home"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_sound_server_passes_every_test(client: str, home: Path, capsys: Capture) -> None:
    with run_stand_in(home) as server:
        serve(home, server, settings=TOOLS)
        connection = read_connection(client, "--test", capsys=capsys)
        asked = server.read_requests()
    tested = {one.what: one.works for one in connection.checks}
    assert set(tested.values()) == {True}, connection.checks
    assert {"streamed answer", "tool call, forced", "long prompt"} <= tested.keys()
    assert {one["body"]["model"] for one in asked} == {MODEL}
    assert {one["route"] for one in asked} <= {*CLIENTS[client].routes}
    longest = max(str(one["body"]).count("word ") for one in asked)
    assert CONTEXT * 0.99 < longest < CONTEXT


@pytest.mark.parametrize(
    ("client", "header", "value"),
    [
        ("claude", "Authorization", f"Bearer {SECRET}"),
        ("codex", "Authorization", f"Bearer {SECRET}"),
        ("anthropic-python", "X-Api-Key", SECRET),
    ],
)
def test_the_key_goes_where_the_client_puts_it(
    client: str, header: str, value: str, home: Path, capsys: Capture
) -> None:
    file = make_keys(home)
    with run_stand_in(home) as server:
        serve(home, server, settings=TOOLS, terms=Terms(keys_file=home / "keys.json"))
        read_connection(client, "--test", "--key", str(file), capsys=capsys)
        asked = server.read_requests()
    lower = [{name.lower(): told for name, told in one["headers"].items()} for one in asked]
    assert {one.get(header.lower()) for one in lower} == {value}
    other = {"authorization", "x-api-key"} - {header.lower()}
    assert not any(name in one for one in lower for name in other)


@pytest.mark.parametrize(
    ("wrong", "what", "works", "hint"),
    [
        ({"calls": "as text"}, "tool call, forced", False, "--tool-call-parser"),
        ({"calls": "no parser"}, "tool call, forced", False, "--tool-call-parser"),
        ({"calls": "forced only"}, "tool call, the model's choice", None, ""),
        (
            {"calls": "forced only", "text": '<tool_call>{"name"'},
            *("tool call, the model's choice", False, "--tool-call-parser"),
        ),
        ({"arguments": ['{"unit": ']}, "tool call, forced", False, "--tool-call-parser"),
        ({"arguments": ['{"unit": 3}']}, "tool call, forced", False, "--tool-call-parser"),
        ({"counted": 99}, "counted tokens", False, ""),
        ({"refuse": "/v1/messages/count_tokens"}, "counted tokens", False, ""),
        ({"refuse": "/v1/messages"}, "streamed answer", False, "slipstream logs --access"),
        ({"cut": True}, "streamed answer", False, "slipstream logs --access"),
    ],
)
def test_what_does_not_work_is_told_with_what_to_type(
    wrong: dict[str, Any], what: str, works: bool | None, hint: str, home: Path, capsys: Capture
) -> None:
    with run_stand_in(home, **wrong) as server:
        serve(home, server, settings=TOOLS)
        code = 1 if works is False else 0
        checks = read_connection("claude", "--test", capsys=capsys, code=code).checks
    check = next(one for one in checks if one.what == what)
    assert check.works is works
    assert hint in (check.hint or "")
    # What comes before it works: a server that is wrong about one thing fails in that one.
    assert {one.works for one in checks[: checks.index(check)]} <= {True}


def test_people_see_a_table_and_the_hints(home: Path, capsys: Capture) -> None:
    with run_stand_in(home, calls="as text") as server:
        serve(home, server)
        out, err = connect("openai-python", "--test", capsys=capsys, code=1)
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["streamed", "answer", "works"]
    assert any(line.startswith("hint: slipstream serve TARGET -- --enable-auto") for line in lines)
    assert "this can take minutes" in err


@pytest.fixture
def sleeper() -> Iterator[Process]:
    """Yield an engine that listens nowhere."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        process = read_process(child.pid)
        assert process is not None
        yield process
        child.kill()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_key_does_not_go_to_whoever_else_has_the_port(
    restarts: bool, home: Path, sleeper: Process, capsys: Capture
) -> None:
    file = make_keys(home)
    with run_stand_in(home) as server:
        engine = None if restarts else sleeper
        serve(home, server, engine=engine, terms=Terms(keys_file=home / "keys.json"))
        connect("llm", "--test", "--key", str(file), capsys=capsys, code=3)
        assert server.read_requests() == []


def test_another_server_is_asked_for_its_model(home: Path, capsys: Capture) -> None:
    with run_stand_in(home) as server:
        connection = read_connection("openai-python", f"{server.url}/v1", "--test", capsys=capsys)
    assert (connection.run, connection.model, connection.context) == (None, MODEL, CONTEXT)
    assert connection.variables == {"OPENAI_BASE_URL": f"{server.url}/v1"}


@pytest.mark.parametrize("name", ["", "a\x1b[2Jb", "a\nexport PATH=x"])
def test_a_server_cannot_write_to_the_terminal_by_its_models_name(
    name: str, home: Path, capsys: Capture
) -> None:
    with run_stand_in(home, name=name) as server:
        out, err = connect("llm", server.url, capsys=capsys, code=1)
    assert "\x1b" not in out + err
    assert "export PATH" not in out


def test_a_server_cannot_write_to_the_terminal_by_its_errors(home: Path, capsys: Capture) -> None:
    with run_stand_in(home, refuse="/v1/chat/completions", words="\x1b[2Jgone") as server:
        out, err = connect("llm", server.url, "--test", capsys=capsys, code=1)
    assert "[2Jgone" in out
    assert "\x1b" not in out + err


def test_a_socket_is_out_of_reach(home: Path, capsys: Capture) -> None:
    serve(home, settings={"uds": Choice("/run/s", "user", "")})
    _, err = connect("claude", capsys=capsys, code=1)
    assert "/run/s" in err
