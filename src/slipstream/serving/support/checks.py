"""What `doctor` checks: the form of a result, and what others could read, write or reach."""

import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.records import Record, read_record
from slipstream.serving.access.gate_file import GateSettings, is_loopback
from slipstream.serving.access.keys import find_key_file, read_keys
from slipstream.serving.access.listeners import Listener, list_engines, list_open_listeners
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.run import Run, RunFolder, is_alive
from slipstream.serving.supervision.engine_session import list_session
from slipstream.serving.support.advisories import Lookup
from slipstream.user_folders import (
    compile_cache,
    config_folder,
    find_local,
    model_cache,
    recipe_overlay,
    slipstream_cache,
)

CheckVerdict = Literal["ok", "warning", "fault"]


class Check(Record):
    """The result of one check; one that is not ok has a hint."""

    subject: str
    verdict: CheckVerdict
    message: str
    details: tuple[str, ...] = ()
    hint: str | None = None


def fine(subject: str, message: str, details: tuple[str, ...] = ()) -> Check:
    return Check(subject=subject, verdict="ok", message=message, details=details)


def warn(subject: str, message: str, hint: str, details: tuple[str, ...] = ()) -> Check:
    return Check(subject=subject, verdict="warning", message=message, hint=hint, details=details)


def fault(subject: str, message: str, hint: str, details: tuple[str, ...] = ()) -> Check:
    return Check(subject=subject, verdict="fault", message=message, hint=hint, details=details)


class OtherLoad(Protocol):
    """What other processes use of this machine, as measuring's `MachineLoad` has it."""

    cores: int
    other_cpu_share: float
    busiest: str | None

    @property
    def most_other_share(self) -> float:
        """The share of the cores up to which others do not disturb."""

    def describe(self, *, named: bool = True) -> str:
        """Return what disturbs, or nothing on a quiet machine; not `named`, without programs."""


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that is examined, the newest run first."""

    host: Host
    environment: Mapping[str, str]
    user: int
    runs: tuple[tuple[RunFolder, Run], ...]
    runs_root: Path
    now: datetime
    lookup: Lookup | None = None
    load: OtherLoad | None = None
    proc: Path = Path("/proc")
    # Of the interpreter and the fleet: what others must not write to, and what they must not read.
    trusted: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()


def check_modes(site: Site) -> Iterator[Check]:
    """Check the modes of files that others could read or write, and for unused key files."""
    keys = find_key_file(site.environment)
    yield from _check_mode(keys, 0o077, 600, site.user)
    for folder in (site.runs_root, *(folder.path for folder, _ in site.runs)):
        yield from _check_mode(folder, 0o077, 700, site.user)
    keys_of_tls, certificates = _list_tls(site)
    for path in {*site.private, *keys_of_tls}:
        yield from _check_mode(path, 0o077, 700 if path.is_dir() else 600, site.user)
    executed = (*_list_caches(site.environment), *_list_weights(site), *certificates)
    for path in dict.fromkeys((*executed, *_list_configuration(site))):
        # What is compiled is kept as pickles: whoever writes there runs code in the engine.
        yield from _check_mode(path, 0o022, 700 if path.is_dir() else 600, site.user)
    try:
        read_keys(keys)
    except InvalidInputError as found:
        yield fault("files", found.message, found.hint, found.details)


def _check_mode(path: Path, closed: int, mode: int, user: int) -> Iterator[Check]:
    try:
        status = path.stat()
    except OSError:
        return
    name = shlex.quote(str(path))
    if status.st_uid not in (user, 0):
        yield fault("files", f"{path} belongs to another user", f"ls -ld {name}")
    elif status.st_mode & closed & 0o022:
        why = ", whose files an engine executes or obeys" if path.is_dir() else ""
        yield fault("files", f"other users can write to {path}{why}", f"chmod {mode} {name}")
    elif status.st_mode & closed:
        yield warn("files", f"other users can read {path}", f"chmod {mode} {name}")


def _list_caches(environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    yield slipstream_cache(environment)
    yield model_cache(environment)
    yield Path(environment.get("VLLM_CACHE_ROOT") or cache / "vllm")
    yield compile_cache(environment)
    yield Path(environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    yield Path(environment.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    yield Path(environment.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache" / "flashinfer"


def _list_weights(site: Site) -> Iterator[Path]:
    """List the folders of the models and drafters that runs serve: local ones, or in the cache."""
    for _, run in site.runs:
        for name in (run.plan.target, run.plan.drafter):
            if name is None:
                continue
            if (local := find_local(name)).is_dir():
                yield local
                continue
            cached = model_cache(site.environment) / f"models--{name.replace('/', '--')}"
            yield from (cached, cached / "blobs", *cached.glob("snapshots/*"))


def _list_tls(site: Site) -> tuple[set[Path], set[Path]]:
    """List the TLS keys of runs, and the certificates that have none in them."""
    keys, certificates = set[Path](), set[Path]()
    for _, run in site.runs:
        with suppress(InvalidInputError):  # It is reported with the certificates.
            if (found := TlsCertificate.of(run.plan)) is not None:
                keys.add(found.key or found.file)
                certificates.add(found.file)
    return keys, certificates - keys


def _list_configuration(site: Site) -> set[Path]:
    """List what a server follows or imports, and the folders that it is in."""
    overlay = recipe_overlay(site.environment)
    files = {config_folder(site.environment) / "config.toml", *overlay.glob("*.json")}
    files |= {*site.trusted}
    for folder, run in site.runs:
        named = (folder.gate, folder.record, run.terms.gate_file, run.terms.plan_file)
        files |= {path for path in named if path is not None}
    folders = {path for file in files if (path := file.parent).is_dir() and not _is_sticky(path)}
    return {overlay, *files, *folders}


def _is_sticky(folder: Path) -> bool:
    """Return whether others may write there, but not replace what they did not write."""
    return bool(folder.stat().st_mode & stat.S_ISVTX)


def check_listeners(site: Site) -> Iterator[Check]:
    """Check for engines that other machines can reach without passing the gate."""
    owners = {
        process.pid: (folder, run)
        for folder, run in site.runs
        if run.engine is not None
        for process in list_session(run.engine, site.proc)
    }
    pids = {*owners, *list_engines(site.user, site.proc)}
    for _, run in site.runs:
        if not run.terms.gated and run.engine and list_session(run.engine, site.proc):
            who = "every user of this machine can send it any request"
            hint = f"serve it without --no-gate, after slipstream stop {run.id}"
            yield warn("network", f"{run.id} runs without the gate: {who}", hint)
    for listener in list_open_listeners(pids, site.proc):
        yield from _check_listener(listener, owners.get(listener.pid))


def _check_listener(listener: Listener, owner: tuple[RunFolder, Run] | None) -> Iterator[Check]:
    where = f"{listener.address}:{listener.port}"
    if owner is None:
        what = f"process {listener.pid} is vLLM without a gate on {where}"
        message = f"{what}: even with --api-key some of its routes need no key"
        yield warn("network", message, "slipstream serve TARGET")
        return
    folder, run = owner
    if urlsplit(run.url or "").port != listener.port:
        message = f"{run.id} has an internal port on {where} that the gate does not protect"
        hint = f"block port {listener.port} for other machines with a firewall"
        yield warn("network", message, hint)
    elif not _asks_for_keys(folder):
        message = f"{run.id} serves other machines on {where} without a key"
        yield fault("network", message, f"slipstream stop {run.id}")


def _asks_for_keys(folder: RunFolder) -> bool:
    try:
        gate = read_record(folder.gate, GateSettings, hint="slipstream serve TARGET")
    except InvalidInputError:
        return False
    has_keys = gate.keys_file is not None and gate.keys_file.exists()
    return not is_loopback(gate.host) or gate.keys_required or has_keys


def check_certificates(site: Site) -> Iterator[Check]:
    """Check the TLS certificates of live runs: expiry, and what the next start would refuse."""
    for _, run in site.runs:
        if not is_alive(run.supervisor, site.proc):
            continue
        try:
            certificate = TlsCertificate.of(run.plan)
            warnings = certificate.check(site.now) if certificate else ()
        except InvalidInputError as found:
            yield fault("network", found.message, found.hint)
            continue
        for warning in warnings:
            hint = f"renew it; {run.id} takes a new one only with -- --enable-ssl-refresh"
            yield warn("network", warning, hint)
