"""systemd: a unit that runs the same command as a person would, and the messages to its manager.

The unit's user is a fixed one and not systemd's dynamic one: the key file and the cache of models
belong to somebody, and are handled from outside (`sudo -Hu slipstream slipstream keys new`). The
key file is read where it lies and not copied as a credential: a revoked key is refused within a
second.

A message is one datagram to the socket that the manager names; without one nothing is sent. The
heartbeat comes from the supervisor's own event loop: if that hangs, the manager restarts us.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ExitCode, InvalidInputError
from slipstream.serving.run import Event
from slipstream.serving.supervision.engine_process import GRACE_SECONDS

USER = "slipstream"
# For what comes after a drain and the engine's grace: KILL, the last records, our own exit.
STOP_MARGIN_SECONDS = 15
RESTART_SECONDS = 30
# The loop that beats does nothing that takes long; a full disk's fsync may take some seconds.
WATCHDOG_SECONDS = 60
# A start is never cut off while it reports: a download does every few seconds, the loop more often.
EXTEND_SECONDS = 600
BEATS_PER_TIMEOUT = 4
UNWATCHED_SECONDS = 60.0
# Verdicts on a file, on the command, on an engine that was never ready with this plan here. One
# that was is started for ever by the supervisor, and the supervisor, if it dies, by systemd.
_FINAL = (ExitCode.EXPECTED_FAILURE, ExitCode.USAGE, ExitCode.ENGINE, ExitCode.GATE_MISSED)
# Which the service does not see, or sees empty.
_HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
# What an engine compiles and keeps goes where it may write; %S and %C are systemd's folders.
_FOLDERS = {
    "HOME": "%S/slipstream",
    "SLIPSTREAM_CACHE": "%C/slipstream",
    "VLLM_CACHE_ROOT": "%C/slipstream/vllm",
    "CUDA_CACHE_PATH": "%C/slipstream/cuda",
    "TRITON_CACHE_DIR": "%C/slipstream/triton",
    "FLASHINFER_WORKSPACE_BASE": "%C/slipstream/flashinfer",
}
_CONFINEMENT = """\
# Left out on purpose. PrivateDevices, DeviceAllow: a GPU's nodes may appear after the start.
# ProtectClock: before systemd 252 it closes all devices (systemd#18142); the filter and the empty
# capability set forbid the same. MemoryDenyWriteExecute: kernels are compiled. ProcSubset: memory
# is read from /proc/meminfo. PrivateNetwork, IPAddressDeny: clients and the hub are elsewhere.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=tmpfs
PrivateTmp=yes
ProtectProc=invisible
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectHostname=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
# Netlink: NCCL and Python list the network's interfaces.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
# PyTorch's workers share GPU memory through it.
SystemCallFilter=pidfd_getfd
SystemCallErrorNumber=EPERM
UMask=0077
# A dump would hold prompts.
LimitCORE=0
# The keys are made and revoked from outside.
ReadOnlyPaths=-%S/slipstream/.config"""


@dataclass(frozen=True, slots=True)
class Service:
    """The contents of a unit file.

    `keys` and `models` are None for the service's own; `read` is all else that it must see.
    """

    command: Path
    plan: Path
    drain_seconds: int
    options: tuple[str, ...] = ()
    keys: Path | None = None
    models: Path | None = None
    recording: Path | None = None
    read: tuple[Path, ...] = ()


def render_unit(service: Service) -> str:
    lines = [*_describe(service), "", *_serve(service), "", _CONFINEMENT, *_open(service)]
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def count_stop_seconds(drain_seconds: int) -> int:
    """Return the longest time that a supervisor takes to stop: drain, grace and a margin."""
    return drain_seconds + GRACE_SECONDS + STOP_MARGIN_SECONDS


def is_hidden(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _HIDDEN)


def _describe(service: Service) -> list[str]:
    return [
        "[Unit]",
        f"Description=Slipstream serves {_escape(service.plan.stem)}",
        "Wants=network-online.target",
        # The set-user-id nvidia-modprobe does not work under NoNewPrivileges.
        "After=network-online.target nvidia-persistenced.service",
        "StartLimitIntervalSec=0",
    ]


def _serve(service: Service) -> list[str]:
    # A dollar would be a variable.
    quoted = (quote(service.plan), *map(quote, service.options))
    words = [word.replace("$", "$$") for word in quoted]
    models = "%C/slipstream/models" if service.models is None else _escape(service.models)
    named = {**_FOLDERS, "HF_HUB_CACHE": models}
    if service.keys is not None:
        named["SLIPSTREAM_KEYS"] = _escape(service.keys)
    return [
        "[Service]",
        "Type=notify",
        f"User={USER}",
        f"ExecStart={quote(service.command)} serve {' '.join(words)}",
        *(f"Environment={_wrap(f'{name}={path}')}" for name, path in named.items()),
        f"StateDirectory={USER}",
        "StateDirectoryMode=0700",
        f"CacheDirectory={USER}",
        "CacheDirectoryMode=0700",
        "KillMode=mixed",
        "# Ready may take 40 minutes: the supervisor asks for more time as long as it gets on.",
        f"TimeoutStartSec={EXTEND_SECONDS}",
        f"TimeoutStopSec={count_stop_seconds(service.drain_seconds)}",
        f"WatchdogSec={WATCHDOG_SECONDS}",
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        f"RestartPreventExitStatus={' '.join(str(code.value) for code in _FINAL)}",
        "OOMPolicy=continue",
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
    ]


def _open(service: Service) -> list[str]:
    """Return the directives for paths that the service may read or write."""
    writable = [path for path in (service.models, service.recording) if path is not None]
    # The folder, as files in it are replaced.
    keys = () if service.keys is None else (service.keys.parent,)
    seen = [path for path in (service.plan, *keys, *service.read) if is_hidden(path)]
    named = {
        "ReadWritePaths": [path for path in writable if not is_hidden(path)],
        "BindPaths": [path for path in writable if is_hidden(path)],
        "BindReadOnlyPaths": _drop_inner(seen),
    }
    return [
        f"{name}={' '.join(quote(path) for path in dict.fromkeys(paths))}"
        for name, paths in named.items()
        if paths
    ]


def _drop_inner(paths: Iterable[Path]) -> list[Path]:
    unique = list(dict.fromkeys(paths))
    return [one for one in unique if not any(other in one.parents for other in unique)]


def _escape(value: str | Path) -> str:
    """Escape a value for systemd; a line break would start a new setting."""
    text = str(value)
    if not text.isprintable() or (isinstance(value, Path) and not value.is_absolute()):
        raise InvalidInputError(
            f"{text!r} is not allowed in a unit file",
            hint="an absolute path without control characters",
        )
    return text.replace("%", "%%")


def quote(value: str | Path) -> str:
    return _wrap(_escape(value))


def _wrap(text: str) -> str:
    if not set(text) & set(" '\";\\"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ServiceManager:
    """The service manager that started this process, or none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        # A leading @ is an abstract name.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        # What must arrive: it is sent again with every beat until there is room for it.
        self._unsent: tuple[str, ...] = ()
        self._is_ready = False
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        timeout_us = int(environment.get("WATCHDOG_USEC", 0)) if watched else 0
        self.beat_seconds = timeout_us / 1e6 / BEATS_PER_TIMEOUT or UNWATCHED_SECONDS

    @property
    def is_present(self) -> bool:
        return bool(self._address)

    def report(self, event: Event) -> None:
        lines = [f"STATUS={event.state}: {' '.join(event.message.split())}"]
        if event.state == "ready" and not self._is_ready:
            self._is_ready = True
            self._unsent = ("READY=1",)
        if event.state in ("draining", "stopping"):
            lines.append("STOPPING=1")
        self._send(*lines, *self._extend())

    async def beat(self) -> None:
        self._send("WATCHDOG=1", *self._extend())

    def _extend(self) -> list[str]:
        return [] if self._is_ready else [f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}"]

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A manager that does not listen is no reason to stop serving.
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto("\n".join((*lines, *self._unsent)).encode(), self._address)
            self._unsent = ()
