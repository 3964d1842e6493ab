"""What an engine learnt of its steps and drafts, handed to the next run of the same plan.

The core writes the file into its run's folder (`vllm_plugin/steering`), and checks what it reads.
Here a file is only found and copied: one of this user, no link, and not too large.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from hashlib import sha256
from json import dumps
from pathlib import Path

from slipstream.planning.plan import LaunchPlan
from slipstream.serving.access.tls import TLS_FLAGS
from slipstream.serving.run import Run, RunFolder, list_runs

# One per engine core: learnt.json, learnt-rank-1.json and so on.
FILES = "learnt*.json"
MOST_BYTES = 256 << 10
MOST_FILES = 64
# Where it listens changes nothing that is learnt.
_ADDRESS = dict.fromkeys(("host", "port", "uds", "middleware", "served_names"))


def digest_plan(plan: LaunchPlan, versions: Mapping[str, str], *, steered: bool) -> str:
    """Return a digest of what steps and drafts depend on: engine, machine, models, settings."""
    rest = {flag: one for flag, one in plan.settings.rest.items() if flag not in TLS_FLAGS}
    settings = plan.change(**_ADDRESS, rest=rest)
    parts = {
        "argv": settings.argv(),
        "environment": {name: choice.value for name, choice in plan.environment.items()},
        "machine": (plan.machine, plan.threads),
        "versions": dict(versions),
        "steered": steered,
    }
    return sha256(dumps(parts, sort_keys=True).encode()).hexdigest()


def inherit_learnt(folder: RunFolder, run: Run) -> RunFolder | None:
    """Copy what the newest earlier run of the same plan has learnt; return its folder."""
    for source, earlier in list_runs(folder.path.parent):
        same = earlier.plan_digest == run.plan_digest and earlier.id != run.id
        # After a swap it is about another drafter than the plan's.
        if not same or earlier.drafters or source.path.is_symlink():
            continue
        found = dict(_read_files(source.path))
        for name, content in found.items():
            _write_new(folder.path / name, content)
        if found:
            return source
    return None


def _read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob(FILES))[:MOST_FILES]:
        if (content := _read_own(path)) is not None:
            yield path.name, content


def _read_own(path: Path) -> bytes | None:
    """Return a file's content, None unless it is a small regular file of this user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    return content if 0 < len(content) <= MOST_BYTES else None


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that was not there; without room for it the engine learns anew."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        path.unlink(missing_ok=True)
