"""Removes ended runs: the newest are kept, within a number, an age and a size."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from slipstream.serving.run import Run, RunFolder, list_runs
from slipstream.serving.selection import is_over
from slipstream.units import show_bytes

KEPT_RUNS = 20
KEPT_AGE = timedelta(days=30)
KEPT_BYTES = 1 << 30
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Pruned:
    names: tuple[str, ...]
    size_bytes: int

    def __str__(self) -> str:
        removed = f"{len(self.names)} old run{'s' * (len(self.names) > 1)}"
        return (
            f"{removed} of {show_bytes(self.size_bytes)} removed: the newest {KEPT_RUNS} are kept, "
            f"for {KEPT_AGE.days} days, up to {show_bytes(KEPT_BYTES)}"
        )


def prune_runs(
    root: Path, *, now: datetime, spared: Path | None = None, proc: Path = _PROC
) -> Pruned:
    """Remove the runs that are over and that nobody is likely to ask for; `spared` stays.

    The newest that is over always stays, whatever its age and size: it says why it ended, and
    a clock that jumps ahead makes everything old.
    """
    names, freed = [], 0
    for folder, size in list(_choose(root, now, spared, proc)):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            names.append(folder.name)
            freed += size
    return Pruned(tuple(names), freed)


def _choose(
    root: Path, now: datetime, spared: Path | None, proc: Path
) -> Iterator[tuple[Path, int]]:
    kept_bytes = 0
    for number, (folder, run) in enumerate(_list_over(root, proc)):
        size = _measure(folder.path)
        fits = kept_bytes + size <= KEPT_BYTES and number < KEPT_RUNS
        if (
            number == 0
            or _is_same(folder.path, spared)
            or (fits and now - run.began_at <= KEPT_AGE)
        ):
            kept_bytes += size
        else:
            yield folder.path, size


def _list_over(root: Path, proc: Path) -> list[tuple[RunFolder, Run]]:
    """List what is over, the newest first, and nothing that a link in the root leads to.

    A run that was served again can have its keys in the folder of the one before.
    """
    runs = list_runs(root)
    holders = {run.terms.keys_file.parent for _, run in runs if run.terms.keys_file}
    return [
        (folder, run)
        for folder, run in runs
        if is_over(run, proc) and folder.path not in holders and not folder.path.is_symlink()
    ]


def _is_same(path: Path, other: Path | None) -> bool:
    return other is not None and other.exists() and path.samefile(other)


def _measure(folder: Path) -> int:
    """Add up the files of a folder; links count as nothing."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total
