"""The engine as a child process: started from a plan, ready when healthy, ended as a group.

The engine starts workers of its own. It gets a session to itself, under a warden, and
whatever ends the block or this process, even SIGKILL, ends every process of that session.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from slipstream.errors import EngineError, InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.access.tls import TLS_FLAGS
from slipstream.serving.kept_logs import LogPlace, begin_log, read_end
from slipstream.serving.supervision import warden
from slipstream.serving.supervision.causes.diagnosis import drop_quotes
from slipstream.user_folders import compile_cache

READY_WITHIN_SECONDS = 3600
GRACE_SECONDS = 30
# vLLM does not end by a signal while it loads, and nobody is being answered yet.
LOADING_GRACE_SECONDS = 2
LOOK_EVERY_SECONDS = 0.25
# Of the engine's log, before the warden begins it anew; it keeps three parts of this size more.
LOG_BYTES = 32 << 20
DETAIL_LINES = 6
DETAIL_CHARACTERS = 400
TAIL_BYTES = 1 << 18

_EVERYWHERE = ("0.0.0.0", "::")
# What opens something elsewhere; an engine has its files here and calls nobody.
_SECRET = re.compile(
    r"(?:AWS|AZURE|GOOGLE|S3)_.*|SSH_AUTH_SOCK|KUBECONFIG"
    r"|(?:.*_)?(?:TOKEN|TOKEN_PATH|SECRET|PASSWORD|CREDENTIALS|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)"
)
# What is between the supervisor and systemd.
_SUPERVISORS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_PREFIX = re.compile(r"^\([^)]* pid=\d+\) (?:[A-Z]+ [\d-]+ [\d:]+ \[[^]]+\] )?")
_CALM = re.compile(r"^(?:\([^)]* pid=\d+\) )?(?:DEBUG|INFO|WARNING)\b")
_FRAME = re.compile(r"^(?: {4}|  File )")
_REASON = re.compile(r"(?:[Ee]rror|Exception|Killed)\b")
# A proxy in the environment is not for an engine on this machine.
_direct = build_opener(ProxyHandler({}))


@contextmanager
def run_engine(
    plan: LaunchPlan,
    *,
    log: Path,
    environment: Mapping[str, str],
    port: int | None = None,
    ready_within_seconds: float = READY_WITHIN_SECONDS,
    on_start: Callable[[int], None] = lambda _: None,
    on_wait: Callable[[float], None] = lambda _: None,
) -> Iterator[str]:
    """Start a plan's engine and return its base URL.

    `on_start` is told the process that leads its session, `on_wait` the seconds until it is ready.
    """
    require_accepted(plan)
    planned = plan.settings.port
    port = choose_port(port or (planned.value if planned else None))
    # Nobody else asks it, so it needs no certificate.
    rest = {flag: one for flag, one in plan.settings.rest.items() if flag not in TLS_FLAGS}
    plan = plan.change(port=Choice(port, "default", "free on this machine"), rest=rest)
    url = f"http://{find_host(plan)}:{port}"
    command = make_command(plan)
    with run_group(command, make_environment(plan, environment), log) as process:
        on_start(process.pid)
        try:
            _wait_until_healthy(process, url, log, ready_within_seconds, on_wait)
        except BaseException:
            end_group(process, grace_seconds=LOADING_GRACE_SECONDS)
            raise
        try:
            yield url
        except EngineError as fault:
            # Its log says more than the connection that broke.
            if is_healthy(url):
                raise
            raise _make_error("the engine stopped answering during the measurement", log) from fault


def make_command(plan: LaunchPlan) -> list[str]:
    """Return what starts a plan's engine; a vllm.py in the working directory is not it."""
    return [sys.executable, "-P", *plan.argv()[1:]]


@contextmanager
def run_group(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in its own session, and end the whole session with the block."""
    begin_log(log)
    process = start_group(command, environment, log)
    try:
        yield process
    finally:
        end_group(process, grace_seconds=GRACE_SECONDS)


def start_group(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    successor: Sequence[str] = (),
    successor_wait_seconds: float = 0.0,
) -> subprocess.Popen[bytes]:
    """Start a command under a warden, which leads its group and ends as the command does.

    If this process dies first, the warden ends the group and becomes the successor.
    """
    order = {
        "command": command,
        "environment": dict(environment),
        "successor": successor,
        "successor_wait_seconds": successor_wait_seconds,
        "log": str(log.absolute()),
        "log_bytes": LOG_BYTES,
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", warden.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process


def end_group(process: subprocess.Popen[bytes], *, grace_seconds: float) -> None:
    """Ask a child and its group to end, and kill what is left after a timeout."""
    try:
        signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_seconds)
    finally:
        # A second interrupt cuts the grace short.
        signal_group(process, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def is_healthy(url: str) -> bool:
    try:
        with _direct.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


def find_host(plan: LaunchPlan) -> str:
    """Return the host part of the URL at which this machine reaches the engine."""
    host = plan.settings.host.value if plan.settings.host else _EVERYWHERE[0]
    if host in _EVERYWHERE:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def choose_port(wanted: int | None) -> int:
    """Return the requested port, or a free one; a taken port is refused."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except (OSError, OverflowError) as fault:
            raise InvalidInputError(
                f"the engine cannot listen on port {wanted}: {fault}", hint="choose another port"
            ) from fault
        return int(probe.getsockname()[1])


def make_environment(plan: LaunchPlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Add what the plan sets; an engine downloads nothing, reports to nobody, has no secrets.

    Nor does it, or a process that it starts, import from the working directory: an empty entry
    of PYTHONPATH would be that.
    """
    decided = {name: choice.value for name, choice in plan.environment.items()}
    kept = {
        name: text
        for name, text in environment.items()
        if not _SECRET.fullmatch(name.upper()) and name not in _SUPERVISORS
    }
    variables = {**kept, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **decided}
    variables["TORCHINDUCTOR_CACHE_DIR"] = str(compile_cache(variables))
    paths = [path for path in variables.pop("PYTHONPATH", "").split(os.pathsep) if path]
    search = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return {**variables, **search, "PYTHONSAFEPATH": "1"}


def read_reasons(log: Path, healthy: LogPlace | None = None) -> tuple[str, ...]:
    """Return the last lines of a log that name an error, or else its last lines.

    A dying vLLM says why in the middle: tracebacks of its other processes follow, and a
    page of leaked objects. What requests wrote is no reason.
    """
    text = drop_quotes(read_end(log, TAIL_BYTES, healthy), calm=False)
    lines = [line for line in text.splitlines() if line.strip()]
    messages = [_PREFIX.sub("", line) for line in lines if not _CALM.match(line)]
    reasons = [line for line in messages if names_error(line)]
    shown = reasons or [_PREFIX.sub("", line) for line in lines]
    shortened = (line.strip()[:DETAIL_CHARACTERS] for line in shown)
    return tuple(dict.fromkeys(shortened))[-DETAIL_LINES:]


def names_error(line: str) -> bool:
    """Return whether a line of a log is an error's message."""
    return bool(_REASON.search(line)) and not _FRAME.match(line)


def require_accepted(plan: LaunchPlan) -> None:
    if plan.refusals:
        raise InvalidInputError(
            f"the plan for {plan.target} is refused",
            details=tuple(f"{fault.message} ({fault.code})" for fault in plan.refusals),
            hint=plan.refusals[0].hint,
        )


def _wait_until_healthy(
    process: subprocess.Popen[bytes],
    url: str,
    log: Path,
    within_seconds: float,
    on_wait: Callable[[float], None],
) -> None:
    started = time.monotonic()
    while (waited := time.monotonic() - started) < within_seconds:
        if (code := process.poll()) is not None:
            raise _make_error(f"the engine {name_end(code)} before it was ready", log)
        if is_healthy(url):
            return
        on_wait(waited)
        time.sleep(LOOK_EVERY_SECONDS)
    raise _make_error(f"the engine was not ready within {within_seconds:g} s", log)


def name_end(code: int) -> str:
    """Return how a process ended, as its parent sees it."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _make_error(message: str, log: Path) -> EngineError:
    return EngineError(message, details=read_reasons(log), hint=f"the full engine log is {log}")
