"""Leads a command's session: no process of it outlives its owner, however the owner ends.

Run as a script, without our packages. The order comes as one line of JSON on the standard
input, which then stays open: it closes when the owner dies. The warden leads the session,
and orphans within it become its children, so it finds them wherever they went.

The command's output comes through a pipe, and the warden writes it down in parts of a bounded
size: a disk that is full costs lines, and never the command that wrote them.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PR_SET_CHILD_SUBREAPER = 36
FOUND_AGAIN_SECONDS = 0.01
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SUCCEED_AFTER_SECONDS = 1.0
# An owner that lived so long was not killed over and over.
LASTING_SECONDS = 600.0
KEPT_PARTS = 3
CHUNK_BYTES = 1 << 16


def main() -> NoReturn:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A handler, and not SIG_IGN, which the command would inherit: it gets these signals itself.
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    order, began = json.loads(sys.stdin.buffer.readline()), time.monotonic()
    log = KeptLog(order["log"], order["log_bytes"])
    output, written = os.pipe()
    os.set_blocking(output, False)
    child = subprocess.Popen(
        order["command"],
        env=order["environment"],
        stdin=subprocess.DEVNULL,
        stdout=written,
        stderr=written,
        close_fds=True,
    )
    os.close(written)
    is_owned = _wait(child, output, log)
    if not is_owned:
        child.kill()
    code = child.wait()
    _end_others()
    while log.take(output):
        pass
    if not is_owned:
        lasted = time.monotonic() - began >= LASTING_SECONDS
        _succeed(order["successor"], 0.0 if lasted else order["successor_wait_seconds"])
    if code < 0:
        _die_of(-code)
    os._exit(code)


class KeptLog:
    """A log file that is rotated when it is long; this process writes into it, too."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._path, self._limit_bytes = path, limit_bytes
        self._is_open = False
        with suppress(OSError):
            self._open()

    def take(self, output: int) -> bytes | None:
        """Write down some of the command's output; None if there is none for now."""
        try:
            added = os.read(output, CHUNK_BYTES)
        except BlockingIOError:
            return None
        with suppress(OSError):
            self._write(added)
        return added

    def _write(self, added: bytes) -> None:
        if self._is_open and os.fstat(1).st_size + len(added) > self._limit_bytes:
            self._begin_anew()
        if not self._is_open:
            self._open()
        os.write(1, added)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o600)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        os.close(file)
        self._is_open = True

    def _begin_anew(self) -> None:
        try:
            shift_parts(self._path)
            Path(self._path).rename(name_part(self._path, 1))
            self._is_open = False
        except OSError:
            os.ftruncate(1, 0)


def name_part(path: str, number: int) -> str:
    return f"{path}.{number}" if number else path


def shift_parts(path: str) -> None:
    """Rename the parts of a log to make room for a new one; the oldest is dropped."""
    for number in reversed(range(1, KEPT_PARTS)):
        with suppress(FileNotFoundError):
            Path(name_part(path, number)).replace(name_part(path, number + 1))


def _wait(child: subprocess.Popen[bytes], output: int, log: KeptLog) -> bool:
    """Wait for the child's end, and return whether the owner was there to see it."""
    ended = os.pidfd_open(child.pid)
    watched = select.poll()
    for descriptor in (ended, sys.stdin.fileno(), output):
        watched.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in watched.poll()]
        if output in ready and log.take(output) == b"":
            watched.unregister(output)
        if ended in ready:
            return True
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            return False


def _end_others() -> None:
    """Kill what is left of the session and reap its orphans until nothing is left."""
    while others := _find_others():
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(FOUND_AGAIN_SECONDS)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _find_others() -> list[int]:
    """Return the processes in this session and those that descend from this one, fetched or not."""
    own = os.getpid()
    parents: dict[int, int] = {}
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid, parent = int(stat.parent.name), int(fields[1])
            if fields[0] in "ZX" and parent != own:
                continue
            parents[pid] = parent
            if int(fields[3]) == own:
                found.add(pid)
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != own:
            ancestor = parents[ancestor]
        if ancestor == own:
            found.add(pid)
    return sorted(found - {own})


def _succeed(successor: list[str], wait_seconds: float) -> None:
    """Become the owner's successor after a delay, if it named one and none of them objects."""
    if successor:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        time.sleep(max(SUCCEED_AFTER_SECONDS, wait_seconds))
        os.execv(successor[0], successor)
    os._exit(1)


def _die_of(number: int) -> NoReturn:
    """End as the child did, so that the owner sees its signal."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    main()
