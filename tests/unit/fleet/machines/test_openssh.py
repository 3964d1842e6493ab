"""Commands go to machines word for word; what comes back is bounded, and never shown as it is."""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import SlipstreamError, SlowError, UnreachableError
from slipstream.fleet.machines import openssh
from slipstream.fleet.machines.commands import (
    CommandResult,
    Machines,
    ask_all,
    escape,
    name_command,
)
from slipstream.fleet.machines.openssh import OpenSsh
from slipstream.fleet.record import Machine
from tests.unit.fleet.far_machines import make_fleet

FLEET = make_fleet(
    machines={"one": {"ssh": "me@far:2022"}, "two": {}, "six": {"ssh": "me@[fe80::1]"}}
)
# Stands in for ssh: notes its words, and runs the last one as sshd does, by a shell.
PROGRAM = """#!{python}
import json, os, sys
open({log!r}, "a").write(json.dumps(sys.argv[1:]) + "\\n")
if "-O" not in sys.argv:
    os.execvp("sh", ["sh", "-c", sys.argv[-1]])
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[OpenSsh]:
    program = tmp_path / "ssh"
    program.write_text(PROGRAM.format(python=sys.executable, log=str(tmp_path / "log")))
    program.chmod(0o755)
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    yield (made := OpenSsh(FLEET, sockets, str(program)))
    made.close()
    assert not sockets.exists()


def read_log(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_every_word_arrives_as_it_was_sent(ssh: OpenSsh) -> None:
    words = ["a b", "$HOME", "`id`", "'; exit 3; '", 'say "x"', "*", "", "line\nbreak"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    answer = ssh.run("two", [sys.executable, "-c", code, *words], timeout=30)
    assert json.loads(answer.stdout) == words


def test_ssh_asks_nothing_forwards_nothing_and_checks_host_keys(
    ssh: OpenSsh, tmp_path: Path
) -> None:
    ssh.run("one", ["true"], timeout=30)
    ssh.run("six", ["true"], timeout=30)
    first, second = read_log(tmp_path)
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no"):
        assert f"-o{option}" in first
    assert "-T" in first
    assert first[-5:] == ["-p", "2022", "--", "me@far", "true"]
    assert second[-3:] == ["--", "me@fe80::1", "true"]
    ssh.close()
    assert [one[one.index("-O") + 1] for one in read_log(tmp_path)[2:]] == ["exit", "exit"]


def test_a_command_gets_its_standard_input_and_returns_its_code(ssh: OpenSsh) -> None:
    answer = ssh.run("two", ["sh", "-c", "cat; echo no >&2; exit 4"], stdin=b"\0x", timeout=30)
    assert (answer.code, answer.stdout, answer.complaint) == (4, b"\0x", "no")


def test_a_command_and_an_output_without_an_end_are_ended(
    ssh: OpenSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SlowError, match="two: the command did not end within 0 s"):
        ssh.run("two", ["sleep", "60"], timeout=0.2)
    monkeypatch.setattr(openssh, "MOST_BYTES", 1 << 20)
    with pytest.raises(UnreachableError, match="more than 1 MiB"):
        ssh.run("two", ["yes"], timeout=60)


@pytest.mark.parametrize(
    ("said", "cause", "hint"),
    [
        ("Host key verification failed.", "host key is unknown", "ssh -p 2022 me@far"),
        ("me@far: Permission denied (publickey)", "no key of", "ssh-copy-id -p 2022 me@far"),
        (
            "ssh: Could not resolve hostname far",
            "name cannot be resolved",
            'ssh = "user@address" in [machines.one], or an entry in ~/.ssh/config',
        ),
        ("connect to host far port 22: Connection timed out", "does not answer", "ping far"),
        ("something \x1b[2J else", "something \ufffd[2J else", "ssh -v -p 2022 me@far"),
    ],
)
def test_what_ssh_says_of_a_machine_becomes_a_cause_and_a_hint(
    ssh: OpenSsh, said: str, cause: str, hint: str
) -> None:
    with pytest.raises(UnreachableError) as caught:
        ssh.run("one", ["sh", "-c", f"echo '{said}' >&2; exit 255"], timeout=30)
    assert cause in caught.value.message
    assert caught.value.hint == hint


def test_a_file_is_put_in_place_whole_and_private(ssh: OpenSsh, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "er" / "a file"
    ssh.send("two", b"x" * 100_000, str(place))
    assert place.read_bytes() == b"x" * 100_000
    assert place.stat().st_mode & 0o777 == 0o600
    assert list(place.parent.iterdir()) == [place]
    with pytest.raises(UnreachableError, match="two: cannot write"):
        ssh.send("two", b"", str(place / "below"))


@pytest.mark.parametrize("arrived", [b"x" * 1000, b"x" * 99_999 + b"y"])
def test_a_file_that_does_not_arrive_as_it_was_sent_leaves_the_old_one(
    arrived: bytes, ssh: OpenSsh, tmp_path: Path
) -> None:
    place = tmp_path / "plan.json"
    place.write_bytes(b"whole")
    # The end of a connection is the end of the input, for whoever reads it.
    digest = hashlib.sha256(b"x" * 100_000).hexdigest()
    cut = ["sh", "-c", openssh._WRITE, "sh", str(place), digest]
    assert ssh.run("two", cut, stdin=arrived, timeout=30).code != 0
    assert place.read_bytes() == b"whole"
    left = {one.name for one in tmp_path.iterdir() if one.is_file()}
    assert left == {"log", "plan.json", "ssh"}


def test_a_file_is_read_whatever_a_login_prints_first(ssh: OpenSsh, tmp_path: Path) -> None:
    content = b"{\n\0 not a document\n"
    place = tmp_path / FLEET.folder / "a file"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    program = Path(ssh.program)
    login = f"cd {tmp_path}; echo {{}}; "
    said = program.read_text().replace("sys.argv[-1]])", f"{login!r} + sys.argv[-1]])")
    program.write_text(said)
    assert ssh.run("two", ["true"], timeout=30).stdout == b"{}\n"
    far = Machines(FLEET, ssh)
    assert far.read("two", "a file") == content
    assert far.read("two", "absent") is None


def test_a_relay_hands_all_of_it_over_and_a_taker_that_ends_early_ends_the_giver(
    ssh: OpenSsh, tmp_path: Path
) -> None:
    began = time.monotonic()
    answer = ssh.relay(
        "one", ["cat", "/dev/zero"], "two", ["sh", "-c", "echo full >&2; exit 3"], timeout=60
    )
    assert (answer.code, answer.complaint) == (3, "full")
    assert time.monotonic() - began < 20
    given, taken = tmp_path / "given", tmp_path / "taken"
    given.write_bytes(b"x" * 300_000)
    taking = ["sh", "-c", 'cat > "$1"', "sh", str(taken)]
    assert ssh.relay("one", ["cat", str(given)], "two", taking, timeout=60).code == 0
    assert taken.read_bytes() == given.read_bytes()


def test_a_relay_that_takes_too_long_is_ended_on_both_sides(
    ssh: OpenSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = list["subprocess.Popen[bytes]"](), OpenSsh._begin

    def keep(*what: Any, **more: Any) -> "subprocess.Popen[bytes]":
        begun.append(begin(*what, **more))
        return begun[-1]

    monkeypatch.setattr(OpenSsh, "_begin", keep)
    with pytest.raises(SlowError, match="two: the command did not end within 0 s"):
        ssh.relay("one", ["cat", "/dev/zero"], "two", ["sleep", "60"], timeout=0.2)
    assert len(begun) == 2
    assert None not in [one.returncode for one in begun]


def test_lines_are_read_while_the_command_runs_and_long_ones_in_parts(ssh: OpenSsh) -> None:
    stream = ssh.start("two", ["sh", "-c", "echo a; head -c 200000 /dev/zero; sleep 60"])
    lines = stream.lines()
    assert next(lines) == b"a\n"
    assert len(next(lines)) <= 1 << 16
    assert stream.close() is None


def test_a_connection_that_breaks_is_no_end_of_a_stream(ssh: OpenSsh) -> None:
    broken = "echo a; echo 'Connection to far closed by remote host.' >&2; exit 255"
    stream = ssh.start("one", ["sh", "-c", broken])
    with pytest.raises(UnreachableError, match="one cannot be reached: Connection to far closed"):
        list(stream.lines())
    assert stream.close() == 255
    ended = ssh.start("one", ["sh", "-c", "echo a; exit 3"])
    assert (list(ended.lines()), ended.close()) == ([b"a\n"], 3)


def test_one_machine_that_fails_does_not_stop_the_others() -> None:
    def ask(machine: str) -> str:
        if machine == "b":
            raise UnreachableError("b is gone", hint="look")
        return machine.upper()

    answers = ask_all(["a", "b", "c"], ask)
    assert answers["a"] == "A"
    assert answers["c"] == "C"
    assert isinstance(answers["b"], SlipstreamError)


def test_a_strangers_text_is_shown_on_one_line_without_control_characters() -> None:
    assert escape("a\x1b]0;x\x07\nb\u202ec") == "a\ufffd]0;x\ufffd\ufffdb\ufffdc"
    assert escape("x" * 1000) == "x" * 300 + "..."


def test_a_program_below_home_is_not_looked_for_on_the_path() -> None:
    machine = Machine(python="~/python")
    assert name_command(machine, ["status"])[0] == "./python"
    assert name_command(Machine(python="/opt/python"), ["status"])[0] == "/opt/python"


def test_an_error_that_slipstream_printed_as_json_is_told_by_its_message() -> None:
    said = json.dumps({"error": {"message": "there is no \x1b run", "hint": "x"}}, indent=2)
    assert CommandResult(1, b"", said.encode()).complaint == "there is no \ufffd run"
