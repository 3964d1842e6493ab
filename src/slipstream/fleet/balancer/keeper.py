"""HAProxy on this machine: started, reloaded and stopped, and kept running by a process of ours.

The keeper needs no root and no other program. It runs in a session of its own, starts HAProxy again
when that dies, and writes its log. TERM ends HAProxy softly: requests under way have ten seconds.
USR2 has it take a changed configuration without a pause.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from slipstream.errors import EngineError, MissingPartError
from slipstream.fleet.balancer.control import is_running, save_state
from slipstream.fleet.balancer.haproxy import ANY_ADDRESS, CONFIGURATION, SERVER_STATES
from slipstream.serving.supervision.warden import KeptLog

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
    if (keeper := find_keeper(folder)) is not None:
        os.kill(keeper, signal.SIGUSR2)
    else:
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(folder), haproxy],
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
    """End HAProxy and its keeper, and wait until they are gone."""
    if (keeper := find_keeper(folder)) is None:
        return
    os.kill(keeper, signal.SIGTERM)
    deadline = time.monotonic() + SOFT_STOP_SECONDS + 15
    while find_keeper(folder) is not None:
        if time.monotonic() > deadline:
            raise EngineError(f"process {keeper} does not end", hint=f"kill -9 {keeper}")
        time.sleep(_LOOK_EVERY_SECONDS)


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
