"""A model's files on this disk, all of them checked, for every verb that starts an engine.

The hub is not asked about a folder, nor about a commit that was checked before.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.checkpoints.files import INDEX
from slipstream.checkpoints.hub import is_commit, require_hub_name
from slipstream.errors import InvalidInputError
from slipstream.serving.weights.lock import (
    LocalModel,
    WeightsLock,
    choose_files,
    describe_file,
    describe_model,
    hash_changed,
    read_lock,
    require_whole,
    save_lock,
)
from slipstream.serving.weights.progress import Report
from slipstream.serving.weights.snapshot import Snapshots
from slipstream.user_folders import slipstream_cache

__all__ = ["LocalModel", "obtain", "obtain_settings"]


def obtain(
    name: str,
    *,
    revision: str | None,
    environment: Mapping[str, str],
    report: Report,
    draw: Report | None = None,
    accept_changes: bool = False,
    with_code: bool = False,
) -> LocalModel:
    """Return a model's folder with every file that an engine needs, fetched and hashed if need be.

    `accept_changes` takes a folder as it is now. `with_code` fetches Python files too, for a
    commit that somebody has read.
    """
    folder = Path(name).expanduser()
    locks = slipstream_cache(environment).absolute() / "locks"
    keeper = _LockKeeper(name, locks, report, draw, accept_changes, with_code)
    try:
        if folder.is_dir():
            _require_no_revision(name, revision)
            return keeper.check(folder.resolve())
        require_hub_name(name)
        _require_commit_for_code(name, revision, with_code)
        return _obtain_from_hub(Snapshots(name, environment, report, draw), revision, keeper)
    except OSError as fault:
        raise InvalidInputError(
            f"cannot use {fault.filename or name}: {fault.strerror}",
            hint="check its permissions and its disk; SLIPSTREAM_CACHE names another cache",
        ) from fault


def obtain_settings(name: str, *, revision: str | None, environment: Mapping[str, str]) -> Path:
    """Return a folder with a model's configuration and tokenizer; weights are not fetched."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    require_hub_name(name)
    return Snapshots(name, environment, lambda _: None).fetch_settings(revision)


def _obtain_from_hub(
    snapshots: Snapshots, revision: str | None, keeper: "_LockKeeper"
) -> LocalModel:
    commit = snapshots.resolve(revision)
    folder = snapshots.find(commit)
    if folder and snapshots.offline:
        return keeper.check(folder, commit)
    if folder and (model := keeper.recall(folder)):
        return model
    folder, hashes = snapshots.fetch(commit, with_code=keeper.with_code)
    return keeper.check(folder, commit, hashes)


@dataclass(frozen=True, slots=True)
class _LockKeeper:
    """Compares a model's folder with its lock, and writes the lock."""

    name: str
    locks: Path
    report: Report
    draw: Report | None
    accept_changes: bool
    with_code: bool

    def check(
        self, folder: Path, commit: str | None = None, hashes: Mapping[str, str] | None = None
    ) -> LocalModel:
        """Hash what is new, and refuse what changed; `hashes` are those that the hub confirmed."""
        paths = (*folder.glob("*"), *folder.glob("*/*.jinja"))
        here = [str(path.relative_to(folder)) for path in paths if path.is_file()]
        index = (folder / INDEX).read_bytes
        names = choose_files(self.name, here, index, with_code=self.with_code)
        require_whole(folder, names)
        before = read_lock(self._place(folder))
        known = before.by_name() if before else {}
        if hashes is not None:
            known = {
                file: describe_file((folder / file).stat(), file, hashes[file]) for file in hashes
            }
        now, faults = hash_changed(folder, names, known, self.report, self.draw)
        if faults and not self.accept_changes:
            raise InvalidInputError(
                faults[0],
                details=faults[1:],
                hint="download it again; if you changed it yourself, --accept-changes",
            )
        others = {file: known[file] for file in known if (folder / file).is_file()}
        lock = WeightsLock(
            repository=self.name if commit else None,
            commit=commit,
            folder=str(folder),
            with_code=self.with_code,
            files=tuple({**others, **now}.values()),
        )
        if lock != before:
            save_lock(self._place(folder), lock)
        return describe_model(self.name, self._place(folder), lock, now)

    def recall(self, folder: Path) -> LocalModel | None:
        """Return a snapshot that was checked before, if it is whole; what changed is reported."""
        lock = read_lock(self._place(folder))
        if lock is None or lock.commit is None or (self.with_code and not lock.with_code):
            return None
        known = lock.by_name()
        now, faults = hash_changed(folder, known, known, self.report, self.draw)
        for fault in faults:
            self.report(fault)
        if faults:
            return None
        if now != known:
            renewed = lock.model_copy(update={"files": tuple(now.values())})
            save_lock(self._place(folder), renewed)
        return describe_model(self.name, self._place(folder), lock, now)

    def _place(self, folder: Path) -> Path:
        key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        return self.locks / f"{folder.name}-{key}.json"


def _require_no_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise InvalidInputError(
            f"{name} is a local folder and has no revision {revision}", hint="leave out --revision"
        )


def _require_commit_for_code(name: str, revision: str | None, with_code: bool) -> None:
    if with_code and not is_commit(revision):
        raise InvalidInputError(
            f"code of {name} is used only at a fixed commit: a branch can change",
            hint="read its Python files, then name their commit with --revision",
        )
