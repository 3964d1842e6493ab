"""A repository's copies in the cache: for each commit a folder, and a lock beside it.

A commit that is here whole is given without asking the hub. A branch is asked for, and is the
commit that it was last if the hub cannot be reached.
"""

import fcntl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from slipstream.atomic_files import write_atomically
from slipstream.checkpoints.files import INDEX
from slipstream.errors import MissingPartError
from slipstream.serving.download import Download
from slipstream.serving.hub_listing import Listing, is_commit, list_repository
from slipstream.serving.model_files import choose_files, require_whole
from slipstream.serving.weights_lock import (
    LocalModel,
    LockedFile,
    WeightsLock,
    describe_model,
    hash_changed,
    read_lock,
    save_lock,
)


@dataclass(frozen=True, slots=True)
class HubCopy:
    """A repository's place in the cache: a folder and a lock for each commit."""

    name: str
    store: Path
    environment: Mapping[str, str] = field(repr=False)
    report: Callable[[str], None]
    with_code: bool

    def obtain(self, revision: str | None) -> LocalModel:
        """Give the copy of a commit that is here, or fetch what is missing of it."""
        if revision and is_commit(revision) and (kept := self._open(revision)):
            return kept
        with self._alone():
            try:
                listing = list_repository(self.name, revision, self.environment)
            except MissingPartError as fault:
                commit = self._recall(revision)
                kept = self._open(commit) if commit else None
                if kept is None:
                    raise
                self.report(f"{fault.message}: taking commit {commit}, which is here")
                return kept
            model = self._fetch(listing)
            self._remember(revision, listing.commit)
            return model

    def _open(self, commit: str) -> LocalModel | None:
        """Give the copy of a commit if it is whole; what is wrong with it is reported."""
        place = self._place(commit)
        lock = read_lock(place)
        if lock is None or not lock.complete or (self.with_code and not lock.with_code):
            return None
        known = lock.by_name()
        now, faults = hash_changed(place.parent / lock.folder, known, known, self.report)
        for fault in faults:
            self.report(fault)
        if faults:
            return None
        if now != known:
            save_lock(place, lock.model_copy(update={"files": tuple(now.values())}))
        return describe_model(self.name, place, lock, now)

    def _fetch(self, listing: Listing) -> LocalModel:
        """Fetch what is missing; the lock grows with every file, so that none is hashed twice."""
        place, folder = self._place(listing.commit), self.store / listing.commit
        before = read_lock(place)
        known = before.by_name() if before else {}
        download = Download(listing, folder, self.environment, self.report)
        got: dict[str, LockedFile] = {}

        def fetch(*names: str) -> None:
            for file in download.fetch(names, {**known, **got}):
                got[file.name] = file
                if file != known.get(file.name):
                    self._save(listing, {**known, **got}, complete=False)

        def fetch_index() -> bytes:
            fetch(INDEX)
            return (folder / INDEX).read_bytes()

        names = choose_files(self.name, listing.files, fetch_index, with_code=self.with_code)
        fetch(*names)
        require_whole(folder, names)
        lock = self._save(listing, got, complete=True)
        return describe_model(self.name, place, lock, got)

    def _save(
        self, listing: Listing, files: Mapping[str, LockedFile], *, complete: bool
    ) -> WeightsLock:
        lock = WeightsLock(
            repository=self.name,
            commit=listing.commit,
            folder=listing.commit,
            with_code=self.with_code,
            complete=complete,
            files=tuple(files.values()),
        )
        save_lock(self._place(listing.commit), lock)
        return lock

    def _place(self, commit: str) -> Path:
        return self.store / f"{commit}.json"

    def _recall(self, revision: str | None) -> str | None:
        """Give the commit that a branch or tag was when the hub was last asked."""
        path = self._revision_path(revision)
        return path.read_text() if path.is_file() else None

    def _remember(self, revision: str | None, commit: str) -> None:
        with suppress(OSError):  # it is of use only where the hub cannot be reached
            write_atomically(self._revision_path(revision), commit.encode())

    def _revision_path(self, revision: str | None) -> Path:
        return self.store / f"revision-{quote(revision or '', safe='')}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from fetching the same; the kernel frees it if this one dies."""
        self.store.mkdir(parents=True, exist_ok=True)
        with (self.store / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.report(f"another process fetches {self.name}: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
