"""Machines that are not there: a transport whose answers a test writes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from slipstream import __version__
from slipstream.cli.arguments import FLEET_VERBS
from slipstream.errors import UnreachableError
from slipstream.fleet.machines.commands import CommandResult, Machines, Words
from slipstream.fleet.machines.lease import LeaseRequest, change_lease
from slipstream.fleet.plan import Interface, MachineView
from slipstream.fleet.record import Fleet
from slipstream.hardware import load_host
from slipstream.serving.run import Event, State
from slipstream.serving.run_status import RunStatus, StatusList

# A machine's part: its name, the words of the command and what is on its standard input. The words
# of a request to the far side are its name alone.
Reply = Callable[[str, list[str], bytes | None], CommandResult]
# Who is called, with which words (those of a file that is sent are `send` and its path), and
# whether it was carried out already.
Meddle = Callable[[str, list[str], bytes | None, bool], None]
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


class ControlDiedError(BaseException):
    """The control machine is no more: nothing of its program runs on."""


def make_fleet(**changes: Any) -> Fleet:
    """Make a fleet of two machines in one group, but for what changes."""
    document = {"name": "lab", "model": {"target": "a/b"}, "machines": {"one": {}, "two": {}}}
    return Fleet.model_validate(
        {**document, "groups": {"g": {"machines": ["one", "two"]}}} | changes
    )


def say(text: str | bytes, code: int = 0, stderr: bytes = b"") -> CommandResult:
    return CommandResult(code, text.encode() if isinstance(text, str) else text, stderr)


def find_words(argv: Words) -> list[str]:
    """Return the words of Slipstream's command in a far command line; none for another program."""
    words = list(argv)
    while words[:1] == ["env"] or (words and "=" in words[0]):
        words = words[1:]
    if words[:2] == ["sh", "-c"] and words[3:4] == ["slipstream"]:
        words = words[4:]
    else:
        words = words[3:] if words[1:3] == ["-m", "slipstream"] else []
    return words[2:3] if words[:2] == ["fleet", "far"] else words


def view(number: int, **changes: Any) -> MachineView:
    made = MachineView(
        host=load_host("cpu-server"),
        slipstream=__version__,
        engine="vllm 0.32.0",
        interfaces=(
            Interface(
                name="eth0",
                up=True,
                mtu=1500,
                speed_gbit_per_s=10,
                addresses=(f"10.0.0.{number}/24",),
            ),
        ),
        ephemeral_ports=(32768, 60999),
    )
    return made.model_copy(update=changes)


def run_status(fleet: Fleet, state: State = "ready", **changes: object) -> RunStatus:
    made = RunStatus(
        id="model-1",
        folder="/home/me/runs/model-1",
        state=state,
        since=NOW,
        began_at=NOW,
        message=f"it is {state}",
        url="http://10.0.0.1:8000" if state == "ready" else None,
        plan_file=f"/home/me/{fleet.folder}/plan.json",
        target="model",
        drafter=None,
        supervisor_pid=1,
        engine_pid=2,
        engine_bytes=3,
        restarts=0,
        rungs=(),
        notes=(),
        measurements={},
        in_flight=0,
        last_token_seconds_ago=None,
        next_command="slipstream logs",
    )
    return made.model_copy(update=changes)


def list_runs(*runs: RunStatus) -> CommandResult:
    return say(StatusList(root="/home/me/runs", runs=runs).to_json())


def events(*states: State) -> CommandResult:
    lines = [Event(at=NOW, state=one, message=f"now {one}").model_dump_json() for one in states]
    return say("\n".join(lines) + "\n")


@dataclass
class FarMachines:
    """Keeps what was run and sent; a machine that is down answers nothing.

    With `left`, the control machine dies at the call after so many: before it, or after it was
    carried out and before its answer is there. `meddle` is called before and after every call, and
    raises what becomes of it; with `leases` the lease is a real one, by the time `now`.
    """

    reply: Reply
    down: set[str] = field(default_factory=set)
    commands: list[tuple[str, list[str]]] = field(default_factory=list)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    lease: dict[str, str] = field(default_factory=dict)
    leases: Path | None = None
    now: datetime = NOW
    meddle: Meddle | None = None
    left: int | None = None
    dies_after: bool = False
    _lock: Lock = field(default_factory=Lock)

    def run(
        self, machine: str, argv: Words, *, stdin: bytes | None = None, timeout: float
    ) -> CommandResult:
        with self._lock:
            self.commands.append((machine, list(argv)))
        if machine in self.down:
            raise UnreachableError(f"{machine} cannot be reached: it does not answer", hint="ping")
        words = find_words(argv)
        if words == ["LeaseRequest"]:
            with self._meddling(machine, words, stdin):
                return self._answer_lease(stdin or b"")
        with self._dying(), self._meddling(machine, words or list(argv), stdin):
            return self.reply(machine, words or list(argv), stdin)

    def _answer_lease(self, request: bytes) -> CommandResult:
        if self.leases is not None:
            asked_for = LeaseRequest.model_validate_json(request)
            with self._lock:
                return say(change_lease(self.leases, asked_for, self.now).to_json())
        asked = json.loads(request)
        held = self.lease or {"owner": asked["owner"], "holder": "me@desk", "purpose": "up"}
        return say(json.dumps({**held, "until": NOW.isoformat()}))

    @contextmanager
    def _meddling(self, machine: str, words: list[str], stdin: bytes | None) -> Iterator[None]:
        if self.meddle is not None:
            self.meddle(machine, words, stdin, False)
        yield
        if self.meddle is not None:
            self.meddle(machine, words, stdin, True)

    @contextmanager
    def _dying(self) -> Iterator[None]:
        is_last = self.left == 0
        if self.left is not None and (self.left < 0 or (is_last and not self.dies_after)):
            raise ControlDiedError
        self.left = None if self.left is None else self.left - 1
        yield
        if is_last:
            raise ControlDiedError

    def send(self, machine: str, local: Path | bytes, remote: str) -> None:
        content = local if isinstance(local, bytes) else local.read_bytes()
        if machine in self.down:
            raise UnreachableError(f"{machine} cannot be reached: it does not answer", hint="ping")
        with self._lock, self._dying(), self._meddling(machine, ["send", remote], None):
            self.files[machine, remote] = content

    def start(self, machine: str, argv: Words, *, stdin: bytes | None = None) -> "FarStream":
        return FarStream(self.run(machine, argv, stdin=stdin, timeout=60))

    def relay(
        self, source: str, giving: Words, machine: str, taking: Words, *, timeout: float
    ) -> CommandResult:
        given = self.run(source, giving, timeout=timeout)
        return self.run(machine, taking, stdin=given.stdout, timeout=timeout)

    def list_asked(self, *beginning: str) -> list[str]:
        """List the machines that were asked a command of Slipstream, in order."""
        return [
            machine
            for machine, argv in self.commands
            if find_words(argv)[: len(beginning)] == list(beginning)
        ]


@dataclass
class FarStream:
    answer: CommandResult

    def lines(self) -> Iterator[bytes]:
        yield from (line + b"\n" for line in self.answer.stdout.split(b"\n") if line)

    def close(self) -> int | None:
        return self.answer.code


def connect(monkeypatch: pytest.MonkeyPatch, machines: FarMachines) -> None:
    """Have the commands reach these machines in the place of SSH."""

    @contextmanager
    def open_fake(fleet: Fleet, *, shared: bool = True) -> Iterator[Machines]:
        yield Machines(fleet, machines)

    for verb in FLEET_VERBS:
        monkeypatch.setattr(f"slipstream.cli.fleet.{verb}.open_ssh", open_fake)
