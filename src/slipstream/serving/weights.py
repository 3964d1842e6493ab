"""A model's files on this disk, each of them checked: what `serve` hands to an engine.

Nothing is asked of the hub for a folder, nor for a commit that was fetched before.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from slipstream.checkpoints.files import INDEX
from slipstream.errors import InvalidInputError
from slipstream.serving.hub_copy import HubCopy
from slipstream.serving.hub_listing import is_commit
from slipstream.serving.model_files import choose_files, require_whole
from slipstream.serving.weights_lock import (
    LocalModel,
    WeightsLock,
    describe_model,
    hash_changed,
    read_lock,
    save_lock,
    verify,
)

__all__ = ["LocalModel", "obtain", "verify"]

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def obtain(
    name: str,
    *,
    revision: str | None,
    cache: Path,
    environment: Mapping[str, str],
    report: Callable[[str], None],
    accept_changes: bool = False,
    with_code: bool = False,
) -> LocalModel:
    """Give a model's folder with every file that an engine needs, hashed or fetched if need be.

    `accept_changes` takes a folder as it is now. `with_code` fetches Python files too, for a
    commit that somebody has read.
    """
    folder, cache = Path(name).expanduser(), cache.absolute()
    try:
        if folder.is_dir():
            _require_no_revision(name, revision)
            return _check_folder(name, folder.resolve(), cache, report, accept_changes, with_code)
        _require_hub_name(name, revision, with_code)
        copy = HubCopy(name, cache / "models" / name, environment, report, with_code)
        return copy.obtain(revision)
    except OSError as fault:
        raise InvalidInputError(
            f"cannot use {fault.filename or name}: {fault.strerror}",
            hint="check its rights and its disk; SLIPSTREAM_CACHE names another cache",
        ) from fault


def _require_no_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise InvalidInputError(
            f"{name} is a folder, and has no revision {revision}", hint="leave out --revision"
        )


def _require_hub_name(name: str, revision: str | None, with_code: bool) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"there is no folder {name}, and it is not the name of a model on the hub",
            hint="name a folder with a config.json, or OWNER/MODEL",
        )
    if with_code and not is_commit(revision):
        raise InvalidInputError(
            f"the code of {name} is taken at a commit only: what is at a branch can change",
            hint="read its Python files, then name their commit with --revision",
        )


def _check_folder(
    name: str,
    folder: Path,
    cache: Path,
    report: Callable[[str], None],
    accept_changes: bool,
    with_code: bool,
) -> LocalModel:
    """Hash a user's folder, or compare it with what it was."""
    paths = (*folder.glob("*"), *folder.glob("*/*.jinja"))
    here = [str(path.relative_to(folder)) for path in paths if path.is_file()]
    names = choose_files(name, here, (folder / INDEX).read_bytes, with_code=with_code)
    require_whole(folder, names)
    key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    place = cache / "locks" / f"{folder.name}-{key}.json"
    before = read_lock(place)
    known = before.by_name() if before else {}
    now, faults = hash_changed(folder, names, known, report)
    if faults and not accept_changes:
        raise InvalidInputError(
            faults[0],
            details=faults[1:],
            hint="fetch it again; if you changed it yourself, --accept-changes",
        )
    others = {file: known[file] for file in known if (folder / file).is_file()}
    lock = WeightsLock(folder=str(folder), files=tuple({**others, **now}.values()))
    if lock != before:
        save_lock(place, lock)
    return describe_model(name, place, lock, now)
