"""Which of a model's files an engine reads, and their hashes, so that changes are noticed.

Only safetensors are taken: another format can run code while it is loaded. vLLM loads a flipped
bit without a word. A file is hashed once, and then known by its inode, time and size: it is hashed
again only where one of these differs.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from slipstream.atomic_files import write_even_if_full
from slipstream.checkpoints.files import INDEX, read_header
from slipstream.errors import InvalidInputError
from slipstream.records import Record, read_record
from slipstream.serving.weights.progress import ByteProgress, Report

CHUNK_BYTES = 1 << 20
_PLACES = (".", "additional_chat_templates")
_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".safetensors")


class LockedFile(Record):
    name: str
    size_bytes: int
    sha256: str
    inode: int
    modified_ns: int
    hashed_on: date


class WeightsLock(Record):
    """The locked files of a folder: the user's own, or the snapshot of a commit."""

    schema_version: Literal[2] = 2
    repository: str | None = None
    commit: str | None = None
    folder: str
    with_code: bool = False
    files: tuple[LockedFile, ...]

    def by_name(self) -> dict[str, LockedFile]:
        return {file.name: file for file in self.files}


class LocalModel(Record):
    """A model that an engine can load without a network."""

    schema_version: Literal[1] = 1
    name: str
    folder: Path
    commit: str | None
    files: int
    size_bytes: int
    lock: Path


def read_lock(path: Path) -> WeightsLock | None:
    """Return a lock, None if there is none yet."""
    if not path.exists():
        return None
    return read_record(path, WeightsLock, hint=f"remove {path}, and run the same command again")


def save_lock(path: Path, lock: WeightsLock) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_even_if_full(path, lock.to_json().encode())
    except OSError as fault:
        raise InvalidInputError(
            f"cannot write {path}: {fault.strerror}",
            hint="free some space there, or set SLIPSTREAM_CACHE to another folder",
        ) from fault


def describe_model(
    name: str, place: Path, lock: WeightsLock, files: Mapping[str, LockedFile]
) -> LocalModel:
    return LocalModel(
        name=name,
        folder=Path(lock.folder),
        commit=lock.commit,
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files.values()),
        lock=place,
    )


def hash_changed(
    folder: Path,
    names: Iterable[str],
    known: Mapping[str, LockedFile],
    report: Report,
    draw: Report | None,
) -> tuple[dict[str, LockedFile], tuple[str, ...]]:
    """Return these files as they are now, and a line for each known one that changed or is gone."""
    here = [name for name in names if (folder / name).is_file()]
    stale = [
        name for name in here if name not in known or not is_unchanged(folder / name, known[name])
    ]
    total_bytes = sum((folder / name).stat().st_size for name in stale)
    now = {name: known[name] for name in here if name not in stale}
    with ByteProgress(report, f"hashing {folder}", total_bytes, draw) as progress:
        now |= {name: hash_file(folder / name, name, progress.add) for name in stale}
    changed = [
        _describe_change(folder, known[name], now[name])
        for name in stale
        if name in known and known[name].sha256 != now[name].sha256
    ]
    gone = [f"{name} of {folder} is missing" for name in known if not (folder / name).is_file()]
    return now, (*changed, *gone)


def hash_file(path: Path, name: str, on_bytes: Callable[[int], None]) -> LockedFile:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                on_bytes(count)
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read {path}: {fault.strerror}", hint="check its permissions and its disk"
        ) from fault
    return describe_file(status, name, digest.hexdigest())


def is_unchanged(path: Path, known: LockedFile) -> bool:
    """Return whether a file is, by its inode, time and size, the one that was hashed."""
    status = path.stat()
    seen = (status.st_ino, status.st_mtime_ns, status.st_size)
    return seen == (known.inode, known.modified_ns, known.size_bytes)


def describe_file(status: os.stat_result, name: str, sha256: str) -> LockedFile:
    return LockedFile(
        name=name,
        size_bytes=status.st_size,
        sha256=sha256,
        inode=status.st_ino,
        modified_ns=status.st_mtime_ns,
        hashed_on=datetime.now(UTC).date(),
    )


def _describe_change(folder: Path, then: LockedFile, now: LockedFile) -> str:
    return (
        f"{then.name} of {folder} has changed since {then.hashed_on}: "
        f"sha256 {then.sha256} then, {now.sha256} now"
    )


def choose_files(
    name: str, present: Iterable[str], read_index: Callable[[], bytes], *, with_code: bool
) -> tuple[str, ...]:
    """Return the files that an engine reads; with an index, only the safetensors that it names."""
    suffixes = (*_SUFFIXES, ".py") if with_code else _SUFFIXES
    wanted = sorted(
        file
        for file in present
        if file.endswith(suffixes) and str(PurePosixPath(file).parent) in _PLACES
    )
    shards = {file for file in wanted if file.endswith(".safetensors")}
    if not shards:
        hint = "choose a repository that has them: other formats can run code when loaded"
        if Path(name).is_dir():
            hint = f"copy the model again, with its weights: ls {shlex.quote(name)}"
        raise InvalidInputError(f"{name} has no safetensors", hint=hint)
    if INDEX not in wanted:
        return tuple(wanted)
    named = _read_shard_names(name, read_index())
    if missing := tuple(sorted(named - shards)):
        raise InvalidInputError(
            f"{name} lacks {len(missing)} of its {len(named)} shards",
            details=missing,
            hint=f"fetch {missing[0]}",
        )
    return tuple(file for file in wanted if file not in shards or file in named)


def require_whole(folder: Path, names: Iterable[str]) -> None:
    """Raise if a safetensors header does not describe exactly the bytes of its file."""
    faults = []
    for name in names:
        if name.endswith(".safetensors"):
            try:
                read_header(folder / name)
                _require_no_gaps(folder / name)
            except InvalidInputError as fault:
                faults.append(fault.message)
    if faults:
        raise InvalidInputError(
            f"{len(faults)} of the files in {folder} cannot be loaded",
            details=tuple(faults),
            hint="download these files again",
        )


def _read_shard_names(name: str, index: bytes) -> frozenset[str]:
    try:
        return frozenset(json.loads(index)["weight_map"].values())
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise InvalidInputError(
            f"{INDEX} of {name} names no shards", hint=f"download {INDEX} again"
        ) from fault


def _require_no_gaps(path: Path) -> None:
    """Raise if tensors overlap or leave gaps, which `read_header` accepts."""
    with path.open("rb") as file:
        entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    entries.pop("__metadata__", None)
    reached = 0
    for start, end in sorted(entry["data_offsets"] for entry in entries.values()):
        if start != reached:
            raise InvalidInputError(
                f"{path.name} has a tensor at byte {start} of its data, where {reached} is next",
                hint=f"download {path.name} again",
            )
        reached = end
