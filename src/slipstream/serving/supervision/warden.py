"""Holds a command's processes together: none outlives its owner, whatever ends the owner.

Run as a script, without our packages. The order comes as one line of JSON on the standard
input, which then stays open: it closes when the owner dies. The warden leads the session,
and orphans within it become its children, so it finds them wherever they went.
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


def main() -> NoReturn:
    """Run the order's command until it ends or the owner does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A handler, and not SIG_IGN, which the command would inherit: it gets these signals itself.
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    order, began = json.loads(sys.stdin.buffer.readline()), time.monotonic()
    child = subprocess.Popen(
        order["command"], env=order["environment"], stdin=subprocess.DEVNULL, close_fds=True
    )
    is_owned = _wait(child)
    if not is_owned:
        child.kill()
    code = child.wait()
    _end_others()
    if not is_owned:
        lasted = time.monotonic() - began >= LASTING_SECONDS
        _succeed(order["successor"], 0.0 if lasted else order["successor_wait_seconds"])
    if code < 0:
        _die_of(-code)
    os._exit(code)


def _wait(child: subprocess.Popen[bytes]) -> bool:
    """Wait for the child's end, and say whether the owner was there to see it."""
    ended = os.pidfd_open(child.pid)
    watched = select.poll()
    watched.register(ended, select.POLLIN)
    watched.register(sys.stdin.fileno(), select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in watched.poll()]
        if ended in ready:
            return True
        if not os.read(sys.stdin.fileno(), 4096):
            return False


def _end_others() -> None:
    """Kill all that is left of the session, and fetch the orphans among it, until nothing is."""
    while others := _find_others():
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(FOUND_AGAIN_SECONDS)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _find_others() -> list[int]:
    """Give the processes in this session and those that descend from this one, fetched or not."""
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
    """Become the owner's successor after a while, if it named one and nobody says otherwise."""
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
