"""HAProxy and the router on one machine, kept up by supervisord: a supervisor that exists, needs no
root and starts alike on a workstation and in a container.

The router comes with it from PyPI into a folder of their own; HAProxy is the system's, which keeps
it patched.
"""

import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.errors import EngineError, MissingPartError
from slipstream.fleet.front.control import is_running, save_state, take_keys
from slipstream.fleet.front.haproxy import KEY_LIST, SERVER_STATES
from slipstream.fleet.front.router import PROGRAM, VERSION, render_command
from slipstream.fleet.plan import RouterPlan
from slipstream.serving.access.keys import read_keys

SUPERVISOR_VERSION = "4.3.0"
CONFIGURATION = "front.cfg"
PROGRAMS_FOLDER = Path(".local/share/slipstream/fleet/front-programs")
SUPERVISED = "supervisord.conf"
_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
STARTED_WITHIN_SECONDS = 30.0
_LOOK_EVERY_SECONDS = 0.1
_STOP_SECONDS = 45.0


def render_supervision(router: RouterPlan) -> str:
    """Write supervisord's file; programs are found on the PATH that it is started with."""
    logs = "stdout_logfile_maxbytes=16MB\nstdout_logfile_backups=3\nredirect_stderr=true"
    # Backing off, it waits a second longer after each failure, and never gives up.
    kept = "autorestart=true\nstartsecs=1\nstartretries=1000000"
    return f"""\
[supervisord]
directory=%(here)s
pidfile=%(here)s/supervisord.pid
logfile=%(here)s/supervisord.log
logfile_maxbytes=4MB
logfile_backups=1
umask=077

[unix_http_server]
file=%(here)s/supervisor.sock
chmod=0600

[supervisorctl]
serverurl=unix://%(here)s/supervisor.sock

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[program:front]
command=haproxy -W -f {CONFIGURATION}
priority=1
stopsignal=USR1
stopwaitsecs=30
killasgroup=true
stdout_logfile=%(here)s/front.log
{kept}
{logs}

[program:router]
command={" ".join(render_command(router))}
priority=2
stopwaitsecs=600
stdout_logfile=%(here)s/router.log
{kept}
{logs}
"""


def install(home: Path, path: str) -> None:
    """Install the router and supervisord, unless they are here."""
    folder = home / PROGRAMS_FOLDER
    if _find(PROGRAM, home, path) and _find("supervisord", home, path):
        return
    packages = [f"{PROGRAM}=={VERSION}", f"supervisor=={SUPERVISOR_VERSION}"]
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise MissingPartError(
                f"cannot install {' and '.join(packages)}: {last[:200]}",
                hint=f"{folder}/bin/pip install --find-links WHEELS {' '.join(packages)}",
            )


def take_key_file(fleet: Path, folder: Path, now: datetime) -> None:
    """Have the front know the keys of the fleet's folder, whether it runs or not."""
    keys = [key for key in read_keys(fleet / "keys.json") if key.is_valid(now)]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = "".join(f"{key.sha256}\n" for key in keys)
    write_atomically(folder / KEY_LIST, content.encode(), mode=0o600)
    if is_running(folder):
        take_keys(folder, (key.sha256 for key in keys))


def start(folder: Path, home: Path, path: str) -> None:
    """Start what the folder describes; what runs goes over to it without an interruption."""
    programs = {name: _require(name, home, path) for name in ("haproxy", PROGRAM, "supervisord")}
    environment = {
        "HOME": str(home),
        "PATH": ":".join([*dict.fromkeys(str(one.parent) for one in programs.values()), path]),
    }
    (folder / SERVER_STATES).touch(mode=0o600)
    _require_sound(programs["haproxy"], folder, environment)
    control = programs["supervisord"].with_name("supervisorctl")
    if is_supervised(folder):
        if is_running(folder):
            save_state(folder)
        _control(control, folder, environment, "update")
        _control(control, folder, environment, "signal", "USR2", "front")
    else:
        command = [str(programs["supervisord"]), "-c", str(folder / SUPERVISED)]
        started = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )
        if started.returncode:
            said = (started.stdout + started.stderr).strip()[-300:]
            raise EngineError(f"supervisord does not start: {said}", hint=f"ls -l {folder}")
    _await_front(folder)


def stop(folder: Path) -> None:
    """End the front, the router and their supervisor, and wait until they are gone."""
    pid = _read_pid(folder)
    if pid is None:
        return
    subprocess.run(["kill", str(pid)], check=False, capture_output=True)
    deadline = time.monotonic() + _STOP_SECONDS
    while is_supervised(folder):
        if time.monotonic() > deadline:
            raise EngineError(f"process {pid} does not end", hint=f"kill -9 {pid}")
        time.sleep(_LOOK_EVERY_SECONDS)


def is_supervised(folder: Path) -> bool:
    """Say whether the supervisor of a folder runs."""
    return _read_pid(folder) is not None


def _read_pid(folder: Path) -> int | None:
    """Return the supervisor's process; another one under its number does not know the folder."""
    try:
        pid = int((folder / "supervisord.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(folder / SUPERVISED).encode() in words else None


def _await_front(folder: Path) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_SECONDS
    while not is_running(folder):
        if time.monotonic() > deadline:
            raise EngineError("the front does not start", hint=f"tail {folder}/front.log")
        time.sleep(_LOOK_EVERY_SECONDS)


def _require_sound(haproxy: Path, folder: Path, environment: dict[str, str]) -> None:
    checked = subprocess.run(
        [str(haproxy), "-c", "-f", CONFIGURATION],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode:
        alerts = [line for line in checked.stderr.splitlines() if "ALERT" in line]
        raise EngineError(
            "HAProxy refuses its configuration",
            details=tuple(line[:300] for line in alerts[:5]),
            hint=f"haproxy -c -f {folder}/{CONFIGURATION}",
        )


def _control(program: Path, folder: Path, environment: dict[str, str], *words: str) -> None:
    done = subprocess.run(
        [str(program), "-c", str(folder / SUPERVISED), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-200:]
        raise EngineError(f"supervisorctl {words[0]}: {said}", hint=f"ls -l {folder}")


def _find(name: str, home: Path, path: str) -> Path | None:
    places = f"{home / PROGRAMS_FOLDER / 'bin'}:{path}:{_SBIN}"
    found = shutil.which(name, path=places)
    return Path(found) if found else None


def _require(name: str, home: Path, path: str) -> Path:
    if (found := _find(name, home, path)) is None:
        hint = (
            "sudo apt-get install haproxy && sudo systemctl disable --now haproxy"
            if name == "haproxy"
            else "slipstream fleet up, which installs it; or pip install it there"
        )
        raise MissingPartError(f"there is no {name} on this machine", hint=hint)
    return found
