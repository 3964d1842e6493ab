"""A systemd unit that runs the same command as a person does.

What hides devices or forbids memory that is written and then run is left out on purpose: the
first hides the GPU, the second stops compiled kernels. The set-user-id nvidia-modprobe does
not work either under `NoNewPrivileges`, so the driver's own service comes first.
"""

from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ExitCode, InvalidInputError
from slipstream.serving.supervision.engine_process import GRACE_SECONDS

# For what comes after a drain and the engine's grace: KILL, the last records, our own exit.
STOP_MARGIN_SECONDS = 15
RESTART_SECONDS = 5
# The supervisor has tried what there is to try: only its own death is worth another start.
_FINAL = (ExitCode.EXPECTED_FAILURE, ExitCode.USAGE, ExitCode.ENGINE, ExitCode.GATE_MISSED)
# What an engine compiles and keeps goes where it may write.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "CUDA_CACHE_PATH": "cuda",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}


@dataclass(frozen=True, slots=True)
class Service:
    """What a unit file needs to know; `keys` is read by systemd, so its owner may be root."""

    command: Path
    plan: Path
    user: str
    state: Path
    cache: Path
    models: Path
    drain_seconds: int
    options: tuple[str, ...] = ()
    keys: Path | None = None
    recording: Path | None = None


def render_unit(service: Service) -> str:
    """Write the unit file."""
    lines = [*_describe(service), "", *_serve(service), "", *_confine(service)]
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def count_stop_seconds(drain_seconds: int) -> int:
    """Return the longest time that a supervisor takes to stop: drain, grace and a margin."""
    return drain_seconds + GRACE_SECONDS + STOP_MARGIN_SECONDS


def _describe(service: Service) -> list[str]:
    return [
        "[Unit]",
        f"Description=Slipstream serves {_escape(service.plan.stem)}",
        "Wants=network-online.target",
        "After=network-online.target nvidia-persistenced.service",
        "StartLimitIntervalSec=900",
        "StartLimitBurst=3",
    ]


def _serve(service: Service) -> list[str]:
    caches = {name: service.cache / folder for name, folder in _CACHES.items()}
    folders = {
        "XDG_STATE_HOME": service.state,
        "SLIPSTREAM_CACHE": service.cache,
        "HF_HUB_CACHE": service.models,
        **caches,
    }
    # A dollar would be a variable.
    quoted = (_quote(service.plan), *map(_quote, service.options))
    words = [word.replace("$", "$$") for word in quoted]
    return [
        "[Service]",
        "Type=exec",
        f"User={_escape(service.user)}",
        f"ExecStart={_quote(service.command)} serve {' '.join(words)}",
        *(f"Environment={_quote(f'{name}={path}')}" for name, path in folders.items()),
        *_load_keys(service),
        "KillMode=mixed",
        f"TimeoutStopSec={count_stop_seconds(service.drain_seconds)}",
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        f"RestartPreventExitStatus={' '.join(str(code.value) for code in _FINAL)}",
        "OOMPolicy=continue",
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
    ]


def _load_keys(service: Service) -> list[str]:
    """Hand the keys over as a file that only this service sees."""
    if service.keys is None:
        return []
    return [
        f"LoadCredential=keys:{_escape(service.keys)}",
        "Environment=SLIPSTREAM_KEYS=%d/keys",
    ]


def _confine(service: Service) -> list[str]:
    folders = (service.state, service.cache, service.models, service.recording)
    writable = dict.fromkeys(folder for folder in folders if folder is not None)
    return [
        "# No PrivateDevices: it hides the GPU. No MemoryDenyWriteExecute: kernels are compiled.",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        f"ReadWritePaths={' '.join(_quote(path) for path in writable)}",
        "PrivateTmp=yes",
        "ProtectControlGroups=yes",
        "RestrictSUIDSGID=yes",
        "UMask=0077",
    ]


def _escape(value: str | Path) -> str:
    """Keep systemd from reading a meaning into a value; a line break would be a new setting."""
    text = str(value)
    if not text.isprintable() or (isinstance(value, Path) and not value.is_absolute()):
        raise InvalidInputError(
            f"{text!r} cannot stand in a unit file",
            hint="a whole path, without control characters",
        )
    return text.replace("%", "%%")


def _quote(value: str | Path) -> str:
    """Make one word of a value, whatever is in it."""
    text = _escape(value)
    if not set(text) & set(" '\";\\"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
