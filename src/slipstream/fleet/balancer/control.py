"""HAProxy on this machine: kept running, and asked and changed through its own socket.

A group is closed by putting its server into maintenance: requests under way go on and no new one
comes. What is closed is written down, so that it still is after HAProxy was started again.

The keeper needs no root and no other program. It runs in a session of its own, starts HAProxy again
when that dies, and writes its log. TERM ends HAProxy softly: requests under way have ten seconds.
USR2 has it take a changed configuration without a pause.
"""

import csv
import ctypes
import fcntl
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from slipstream.atomic_files import write_atomically
from slipstream.errors import EngineError, InvalidInputError, MissingPartError
from slipstream.fleet.balancer.haproxy import (
    ADMIN_SOCKET,
    ANY_ADDRESS,
    CONFIGURATION,
    GATES,
    KEY_LIST,
    SERVER_STATES,
)
from slipstream.fleet.record import find_folder
from slipstream.records import Record
from slipstream.serving.access.keys import read_keys
from slipstream.serving.service.systemd import quote
from slipstream.serving.supervision.warden import KeptLog

ANSWER_SECONDS = 5.0
# Of commands in one line: HAProxy reads no more than its buffer holds.
_BATCH = 500

BackendState = Literal["open", "closed", "down"]


class BackendStatus(Record):
    """A group as the load balancer sees it, and the requests it has there."""

    group: str
    state: BackendState
    requests: NonNegativeInt


class BalancerStatus(Record):
    """The groups that the load balancer knows; none while it does not run."""

    schema_version: Literal[2] = 2
    groups: tuple[BackendStatus, ...] = ()
    # Whether systemd starts it after a reboot, None where that cannot be known.
    starts_at_boot: bool | None = None

    def find(self, group: str) -> BackendStatus | None:
        return next((one for one in self.groups if one.group == group), None)


def read_state(folder: Path) -> BalancerStatus:
    """Ask which groups take requests, and how many each has over all backends."""
    listed = _ask(folder, "show stat -1 4 -1").lstrip("# ").splitlines()
    rows = [row for row in csv.DictReader(listed) if row.get("svname")]
    return BalancerStatus(
        groups=tuple(
            BackendStatus(
                group=one["svname"],
                state=_read_status(one["status"]),
                requests=sum(int(row["scur"]) for row in rows if row["svname"] == one["svname"]),
            )
            for one in rows
            if one["pxname"] == GATES
        ),
        starts_at_boot=_starts_at_boot(folder),
    )


def set_group(folder: Path, group: str, *, is_open: bool) -> BalancerStatus:
    """Let new requests to a group, or none; those under way go on."""
    if read_state(folder).find(group) is None:
        raise InvalidInputError(
            f"the load balancer has no group {group!r}",
            hint="if the fleet changed: slipstream fleet up",
        )
    state = "ready" if is_open else "maint"
    if reply := _ask(folder, f"set server {GATES}/{group} state {state}").strip():
        raise _refused(reply)
    save_state(folder)
    return read_state(folder)


def save_state(folder: Path) -> None:
    """Write down which groups are closed, for the next start."""
    write_atomically(folder / SERVER_STATES, _ask(folder, "show servers state").encode())


def _forget_moved(folder: Path) -> None:
    """Leave out the states of servers that have moved: HAProxy would look at their old port.

    It takes ports from that file and not from its configuration (haproxy#1412).
    """
    lines = (folder / SERVER_STATES).read_text().splitlines(keepends=True)
    configured = (folder / CONFIGURATION).read_text()
    kept = []
    for line in lines:
        words = line.split()
        # Backend, server, address and port are words 2, 4, 5 and 19.
        if len(words) >= 19 and not line.startswith("#"):
            host = f"[{words[4]}]" if ":" in words[4] else words[4]
            if f" server {words[3]} {host}:{words[18]} " not in configured:
                continue
        kept.append(line)
    write_atomically(folder / SERVER_STATES, "".join(kept).encode(), mode=0o600)


def take_keys(fleet: Path, folder: Path, now: datetime) -> None:
    """Have HAProxy know the keys of the fleet's folder, whether it runs or not, in one step."""
    hashes = [key.sha256 for key in read_keys(fleet / "keys.json") if key.is_valid(now)]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = "".join(f"{one}\n" for one in hashes)
    write_atomically(folder / KEY_LIST, content.encode(), mode=0o600)
    if not is_running(folder):
        return
    prepared = _ask(folder, f"prepare acl {KEY_LIST}")
    version = prepared.rpartition(":")[2].strip()
    if not version.isdecimal():
        raise _refused(prepared)
    words = [f"add acl @{version} {KEY_LIST} {one}" for one in hashes]
    orders = [";".join(words[at : at + _BATCH]) for at in range(0, len(words), _BATCH)]
    for order in (*orders, f"commit acl @{version} {KEY_LIST}"):
        if reply := _ask(folder, order).strip():
            raise _refused(reply)


def is_running(folder: Path) -> bool:
    try:
        _ask(folder, "show info")
    except EngineError:
        return False
    return True


def _read_status(status: str) -> BackendState:
    if status.startswith("MAINT"):
        return "closed"
    return "open" if status.startswith(("UP", "no check")) else "down"


def _refused(reply: str) -> EngineError:
    return EngineError(f"HAProxy refused: {reply.strip()[:200]}", hint="slipstream fleet doctor")


def _ask(folder: Path, command: str) -> str:
    """Send one line, and return all that comes back."""
    answer = bytearray()
    try:
        # A socket's path has 108 bytes at most; this one is short wherever the folder is.
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(ANSWER_SECONDS)
                asking.connect(f"/proc/self/fd/{directory}/{ADMIN_SOCKET}")
                asking.sendall(command.encode() + b"\n")
                while block := asking.recv(1 << 16):
                    answer += block
        finally:
            os.close(directory)
    except OSError as fault:
        raise EngineError(
            f"no HAProxy answers in {folder}: {fault.strerror or fault}", hint="slipstream fleet up"
        ) from fault
    return answer.decode(errors="replace")


LOG = "haproxy.log"
LOG_BYTES = 16 << 20
LOCK = "keeper.pid"
STARTED_WITHIN_SECONDS = 30.0
SOFT_STOP_SECONDS = 10
LONGEST_PAUSE_SECONDS = 30.0
# HAProxy that lived so long was not started in vain.
LASTING_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1
_LINGER = Path("/var/lib/systemd/linger")
# Under its own name even where it is run as the main program.
_MODULE = "slipstream.fleet.balancer.control"
_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"


def start(folder: Path, path: str) -> None:
    """Start HAProxy as the folder describes; one that runs takes it over without a pause."""
    haproxy = shutil.which("haproxy", path=f"{path}:{_SBIN}")
    if haproxy is None:
        raise MissingPartError(
            "there is no haproxy on this machine",
            hint="sudo apt-get install haproxy && sudo systemctl disable --now haproxy",
        )
    (folder / SERVER_STATES).touch(mode=0o600)
    _require_sound(haproxy, folder)
    if is_running(folder):
        save_state(folder)
    _forget_moved(folder)
    command = [sys.executable, "-P", "-m", _MODULE, str(folder), haproxy]
    _start_at_boot(folder, command)
    if (keeper := find_keeper(folder)) is not None:
        os.kill(keeper, signal.SIGUSR2)
    else:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTED_WITHIN_SECONDS
    while not is_running(folder):
        if time.monotonic() > deadline:
            raise EngineError("HAProxy does not start", hint=f"tail {folder}/{LOG}")
        time.sleep(_LOOK_EVERY_SECONDS)


def stop(folder: Path) -> None:
    """End HAProxy and its keeper, wait until they are gone, and start neither after a reboot."""
    for file in _list_unit_files(folder):
        file.unlink(missing_ok=True)
    if (keeper := find_keeper(folder)) is None:
        return
    os.kill(keeper, signal.SIGTERM)
    deadline = time.monotonic() + SOFT_STOP_SECONDS + 15
    while find_keeper(folder) is not None:
        if time.monotonic() > deadline:
            raise EngineError(f"process {keeper} does not end", hint=f"kill -9 {keeper}")
        time.sleep(_LOOK_EVERY_SECONDS)


def _start_at_boot(folder: Path, command: list[str]) -> None:
    """Leave a unit that starts the keeper when the user's systemd starts: at boot, with linger."""
    unit = [
        *("[Unit]", f"Description=Slipstream balances the fleet {folder.parent.name}"),
        *("[Service]", f"ExecStart={' '.join(quote(word).replace('$', '$$') for word in command)}"),
        *("Restart=on-failure", "RestartSec=5", "[Install]", "WantedBy=default.target", ""),
    ]
    if not (files := _list_unit_files(folder)):
        return
    file, link = files
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, "\n".join(unit).encode(), mode=0o600)
    with suppress(FileExistsError):
        link.symlink_to(file)
    with suppress(OSError, subprocess.TimeoutExpired):
        linger = ["loginctl", "enable-linger"]
        subprocess.run(linger, capture_output=True, check=False, timeout=ANSWER_SECONDS)


def _starts_at_boot(folder: Path) -> bool | None:
    files = _list_unit_files(folder)
    if not files or not Path("/run/systemd/system").is_dir():
        return None
    return files[1].exists() and (_LINGER / getpass.getuser()).exists()


def _list_unit_files(folder: Path) -> list[Path]:
    """Return a unit's file and the link that enables it; none for a folder that is no fleet's."""
    if folder.parent.parent != Path.home() / find_folder("x").rpartition("/")[0]:
        return []
    units = Path.home() / ".config/systemd/user"
    name = f"slipstream-balancer-{folder.parent.name}.service"
    return [units / name, units / "default.target.wants" / name]


def find_keeper(folder: Path) -> int | None:
    """Return the keeper's process: as long as it lives, it holds the lock on its file."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int((folder / LOCK).read_text() or 0) or None
    except FileNotFoundError:
        pass
    return None


def _require_sound(haproxy: str, folder: Path) -> None:
    command = [haproxy, "-c", "-f", CONFIGURATION]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if checked.returncode:
        alerts = [line for line in checked.stderr.splitlines() if "ALERT" in line]
        raise EngineError(
            "HAProxy refuses its configuration",
            details=tuple(line[:300] for line in alerts[:5]),
            hint=f"cd {folder} && haproxy -c -f {CONFIGURATION}",
        )


class _Keeper:
    """Runs HAProxy again and again, until it is asked to stop."""

    def __init__(self, haproxy: str) -> None:
        self._command = [haproxy, "-W", "-f", CONFIGURATION]
        self._log = KeptLog(LOG, LOG_BYTES)
        self._child: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGALRM, lambda *_: self._signal(signal.SIGTERM))
        signal.signal(signal.SIGUSR2, lambda *_: self._signal(signal.SIGUSR2))

    def keep(self) -> None:
        """Start HAProxy whenever there is none, after a pause that grows while it keeps dying."""
        pause = 1.0
        while not self._stop.is_set():
            began = time.monotonic()
            self._run()
            lasted = time.monotonic() - began >= LASTING_SECONDS
            pause = 1.0 if lasted else min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._stop.wait(pause / 2)

    def _run(self) -> None:
        output, written = os.pipe()
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            # A keeper that is killed takes HAProxy with it: the next one would run beside it.
            preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        os.close(written)
        # The last of its processes closes the pipe.
        while self._log.take(output):
            pass
        os.close(output)
        self._child.wait()

    def _end(self) -> None:
        self._stop.set()
        self._signal(signal.SIGUSR1)
        signal.alarm(SOFT_STOP_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)


def main(folder: Path, haproxy: str) -> None:
    """Keep HAProxy running in its folder, unless another process does."""
    os.chdir(folder)
    os.umask(0o077)
    # A kernel without IPv6 has no such file, and would refuse to listen at ::.
    os.environ[ANY_ADDRESS] = "::" if Path("/proc/net/if_inet6").exists() else "0.0.0.0"
    with Path(LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _Keeper(haproxy).keep()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
