"""How commands reach a fleet's machines: OpenSSH, without a terminal, a prompt or an agent.

Connections are shared (ControlMaster) through sockets in a folder of this process alone, and
closed with the transport.
"""

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from slipstream.errors import MissingPartError, SlowError, UnreachableError
from slipstream.fleet.machines.commands import CommandResult, Machines, Stream, Words, ask_all
from slipstream.fleet.record import Fleet

MOST_BYTES = 32 << 20
CONNECT_SECONDS = 10
_SSH_FAILED = 255
_END_SECONDS = 5
_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
}
_SHARED = {"ControlMaster": "auto", "ControlPersist": "60"}
# ssh's own failures leave with 255; what it says then, and what to type.
_CAUSES = (
    ("Host key verification failed", "its host key is unknown here, or has changed", "{ssh}"),
    ("Permission denied", "it accepts no key of this user", "{copy_id}"),
    (
        "Could not resolve",
        "its name cannot be resolved",
        'ssh = "user@address" in [machines.{machine}], or an entry in ~/.ssh/config',
    ),
    ("Connection refused", "nothing listens for SSH there", "{ssh}"),
    ("timed out", "it does not answer", "ping {host}"),
    ("No route to host", "there is no route to it", "ping {host}"),
)
# The hash is compared: the end of a connection looks like the end of a file.
_WRITE = (
    'set -e; umask 077; mkdir -p "$(dirname "$1")"; p="$1.partial-$$"; trap \'rm -f "$p"\' EXIT; '
    'cat > "$p"; [ "$(sha256sum < "$p" | cut -c-64)" = "$2" ]; mv "$p" "$1"'
)


@dataclass(slots=True)
class OpenSsh:
    """The real transport: one `ssh` a command, over one connection a machine."""

    fleet: Fleet
    sockets: Path
    program: str
    shared: bool = True
    _used: set[str] = field(default_factory=set)

    def run(
        self, machine: str, argv: Words, *, stdin: bytes | None = None, timeout: float
    ) -> CommandResult:
        """Run a command to its end; one that takes too long or says too much is ended."""
        return self._finish(machine, self._begin(machine, argv, stdin), stdin, timeout)

    def send(self, machine: str, local: Path | bytes, remote: str) -> None:
        """Put a file there in one step, readable by its user alone."""
        content = local if isinstance(local, bytes) else local.read_bytes()
        argv = ["sh", "-c", _WRITE, "sh", remote, hashlib.sha256(content).hexdigest()]
        answer = self.run(machine, argv, stdin=content, timeout=60 + len(content) / 1e6)
        if answer.code:
            raise UnreachableError(
                f"{machine}: cannot write {remote}: {answer.complaint}",
                hint=self.fleet.hint_ssh(machine, "df -h ."),
            )

    def start(self, machine: str, argv: Words, *, stdin: bytes | None = None) -> Stream:
        process = self._begin(machine, argv, stdin)
        _feed(process, stdin)
        return SshStream(process, lambda answer: self._explain(machine, answer))

    def relay(
        self, source: str, giving: Words, machine: str, taking: Words, *, timeout: float
    ) -> CommandResult:
        giver = self._begin(source, giving, None, stderr=subprocess.DEVNULL)
        try:
            taker = self._begin(machine, taking, giver.stdout)
            assert giver.stdout is not None
            # Else a giver whose taker ended early would write into a pipe that nobody reads.
            giver.stdout.close()
            answer = self._finish(machine, taker, None, timeout)
            with suppress(subprocess.TimeoutExpired):
                giver.wait(10)
        finally:
            _end(giver)
        return CommandResult(answer.code or giver.returncode, b"", answer.stderr)

    def close(self) -> None:
        if self.shared:
            ask_all(self._used, self._disconnect)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _disconnect(self, machine: str) -> None:
        ending = [self.program, *self._list_options(), "-O", "exit", *self._name(machine)]
        # One that does not end now does so by itself, when ControlPersist is over.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(ending, capture_output=True, timeout=10, check=False)

    def _begin(
        self,
        machine: str,
        argv: Words,
        stdin: bytes | IO[bytes] | None,
        stderr: int = subprocess.PIPE,
    ) -> "subprocess.Popen[bytes]":
        self._used.add(machine)
        command = [self.program, *self._list_options(), *self._name(machine), shlex.join(argv)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # An interrupt is ours to handle: a child that dies of it first would look like a fault.
            start_new_session=True,
        )

    def _finish(
        self, machine: str, process: "subprocess.Popen[bytes]", stdin: bytes | None, timeout: float
    ) -> CommandResult:
        output, complaints = bytearray(), bytearray()
        threads = [
            threading.Thread(target=work, args=(process, *what), daemon=True)
            for work, *what in (
                (_keep, process.stdout, output),
                (_keep, process.stderr, complaints),
                (_feed, stdin),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as fault:
            raise SlowError(
                f"{machine}: the command did not end within {timeout:.0f} s",
                hint=self.fleet.hint_ssh(machine, "uptime"),
            ) from fault
        finally:
            _end(process)
            for thread in threads:
                thread.join(5)
        if max(len(output), len(complaints)) > MOST_BYTES:
            raise UnreachableError(
                f"{machine}: more than {MOST_BYTES >> 20} MiB of output",
                hint=f"{self.fleet.hint_ssh(machine)}, and check what it prints at login",
            )
        answer = CommandResult(code, bytes(output), bytes(complaints))
        if code == _SSH_FAILED:
            raise self._explain(machine, answer)
        return answer

    def _explain(self, machine: str, answer: CommandResult) -> UnreachableError:
        printed = answer.stderr.decode(errors="replace")
        names = {
            "machine": machine,
            "ssh": self.fleet.hint_ssh(machine),
            "copy_id": self.fleet.hint_ssh(machine, program="ssh-copy-id"),
            "host": self.fleet.find_login(machine)[0].rpartition("@")[2],
        }
        for sign, cause, hint in _CAUSES:
            if sign in printed:
                return UnreachableError(
                    f"{machine} cannot be reached: {cause}",
                    details=(answer.complaint,),
                    hint=hint.format(**names),
                )
        return UnreachableError(
            f"{machine} cannot be reached: {answer.complaint}",
            hint=self.fleet.hint_ssh(machine, program="ssh -v"),
        )

    def _list_options(self) -> list[str]:
        config = ["-F", str(self.fleet.ssh_config)] if self.fleet.ssh_config else []
        shared = {**_SHARED, "ControlPath": f"{self.sockets}/%C"} if self.shared else {}
        options = {**_OPTIONS, **(shared or {"ControlPath": "none"})}
        return [*config, "-T", *(f"-o{name}={value}" for name, value in options.items())]

    def _name(self, machine: str) -> list[str]:
        """Return the words for a destination; the record has seen to it that none is an option."""
        destination, port = self.fleet.find_login(machine)
        return [*(["-p", port] if port else []), "--", destination]


class SshStream:
    """A command on a machine whose lines are read as they come."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        explain: Callable[[CommandResult], UnreachableError],
    ) -> None:
        self._process, self._explain, self._complaints = process, explain, bytearray()
        self._listening = threading.Thread(
            target=_keep, args=(process, process.stderr, self._complaints), daemon=True
        )
        self._listening.start()

    def lines(self) -> Iterator[bytes]:
        """Yield its lines; a connection that broke is not the command's end."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(1 << 16):
            yield line
        # Who closes its output ends soon, or is ended.
        with suppress(subprocess.TimeoutExpired):
            if self._process.wait(_END_SECONDS) == _SSH_FAILED:
                self._listening.join(_END_SECONDS)
                raise self._explain(CommandResult(_SSH_FAILED, b"", bytes(self._complaints)))

    def close(self) -> int | None:
        code = self._process.poll()
        _end(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


def _keep(process: "subprocess.Popen[bytes]", pipe: IO[bytes], content: bytearray) -> None:
    """Read a pipe to its end, and end the process that fills it past all measure."""
    with pipe:
        while block := os.read(pipe.fileno(), 1 << 16):
            content += block
            if len(content) > MOST_BYTES:
                _end(process)
                return


def _feed(process: "subprocess.Popen[bytes]", content: bytes | None) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(content or b"")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process with those that it started; it leads a group of its own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def open_ssh(fleet: Fleet, *, shared: bool = True) -> Iterator[Machines]:
    """Open the way to a fleet's machines; connections end with it.

    Where every machine is asked once only, sharing connections would cost more than it saves.
    """
    if (program := shutil.which("ssh")) is None:
        raise MissingPartError("ssh is not installed here", hint="apt-get install openssh-client")
    # A socket's path has 108 bytes at most, so it is not below the user's folders.
    sockets = Path(tempfile.mkdtemp(prefix="slipstream-"))
    transport = OpenSsh(fleet, sockets, program, shared)
    try:
        yield Machines(fleet, transport)
    finally:
        transport.close()
