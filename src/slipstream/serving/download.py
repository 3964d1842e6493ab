"""Files of the hub on their way into a folder, one after the other.

A file arrives as NAME.partial, goes on where it was after a cut, and gets its name when its
hash is the one that the hub lists.
"""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.serving.hub_listing import (
    ANSWER_WITHIN_SECONDS,
    Listing,
    RemoteFile,
    explain,
    find_token,
    may_pass,
)
from slipstream.serving.weights_lock import (
    ByteProgress,
    LockedFile,
    hash_file,
    is_unchanged,
    show_size,
)

SILENCE_SECONDS = 30.0
PAUSES_SECONDS: tuple[float, ...] = (1, 2, 4, 8, 15)
ROOM_FACTOR = 1.1

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Download:
    """One repository at one commit, and the folder for it."""

    listing: Listing
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    report: Callable[[str], None]

    def fetch(
        self, names: tuple[str, ...], known: Mapping[str, LockedFile]
    ) -> Iterator[LockedFile]:
        """Give each file once it is here and is the one that the hub lists.

        What is known and unchanged was compared with the hub's hash before.
        """
        files = self.listing.choose(names)
        with self._minding_the_disk(files):
            self.folder.mkdir(parents=True, exist_ok=True)
            here = {file.name: self._find(file, known.get(file.name)) for file in files}
            yield from (locked for locked in here.values() if locked)
            missing_bytes = self._count_missing(files)
            self._require_room(missing_bytes)
            work = f"fetching {self.listing.repository}"
            progress = ByteProgress(self.report, work, missing_bytes)
            with self._open_client() as client:
                for file in files:
                    if here[file.name] is None:
                        yield self._fetch_file(client, file, progress)

    def _count_missing(self, files: list[RemoteFile]) -> int:
        """Count the bytes that are neither here nor in a partial file."""
        return sum(
            max(0, file.size_bytes - _size(self._partial(file)))
            for file in files
            if not (self.folder / file.name).is_file()
        )

    def _require_room(self, missing_bytes: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < missing_bytes * ROOM_FACTOR:
            raise InvalidInputError(
                f"{self.listing.repository} needs {show_size(int(missing_bytes * ROOM_FACTOR))} "
                f"more in {self.folder}, and {show_size(free)} are free",
                hint="make room there, or name a folder on a larger disk with SLIPSTREAM_CACHE",
            )

    @contextmanager
    def _minding_the_disk(self, files: list[RemoteFile]) -> Iterator[None]:
        """Explain a disk that got full; what came so far stays."""
        try:
            yield
        except OSError as fault:
            if fault.errno not in _FULL:
                raise
            missing = show_size(self._count_missing(files))
            free = show_size(shutil.disk_usage(self.folder).free)
            raise InvalidInputError(
                f"{self.folder} is full: {fault.strerror}; {self.listing.repository} lacks "
                f"{missing}, and {free} are free",
                hint="make room there, and run the same command again: it goes on where it was",
            ) from fault

    def _open_client(self) -> httpx.Client:
        """Open a client with the user's token, which it keeps from hosts that the hub points to."""
        token = find_token(self.environment)
        return httpx.Client(
            headers={
                "accept-encoding": "identity",
                **({"authorization": f"Bearer {token}"} if token else {}),
            },
            follow_redirects=True,
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=ANSWER_WITHIN_SECONDS),
        )

    def _find(self, file: RemoteFile, known: LockedFile | None) -> LockedFile | None:
        """Give a file that is here already, and remove one that is not what the hub lists."""
        path = self.folder / file.name
        if not path.is_file():
            return None
        if known and is_unchanged(path, known):
            return known
        self.report(f"hashing {file.name}")
        locked = hash_file(path, file.name)
        if _differs(path, locked, file) is None:
            return locked
        self.report(f"{file.name} is not what the hub lists: fetching it again")
        path.unlink()
        return None

    def _fetch_file(
        self, client: httpx.Client, file: RemoteFile, progress: ByteProgress
    ) -> LockedFile:
        """Fetch a file, a second time from its start if the first was wrong."""
        partial = self._partial(file)
        partial.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            self._transfer(client, file, partial, progress)
            locked = hash_file(partial, file.name)
            fault = _differs(partial, locked, file)
            if fault is None:
                partial.rename(self.folder / file.name)
                return locked
            self.report(f"{file.name}: {fault}")
            progress.add(-locked.size_bytes)
            partial.unlink()
        raise InvalidInputError(
            f"{file.name} of {self.listing.repository} came wrong twice: {fault}",
            hint="look for a proxy that changes files, or ask another hub with HF_ENDPOINT",
        )

    def _transfer(
        self, client: httpx.Client, file: RemoteFile, partial: Path, progress: ByteProgress
    ) -> None:
        """Receive until the file is long enough, over several connections if need be."""
        partial.touch()
        pauses, furthest = iter(PAUSES_SECONDS), _size(partial)
        while _size(partial) < file.size_bytes:
            fault = self._receive(client, file, partial, progress)
            if _size(partial) > furthest:
                pauses, furthest = iter(PAUSES_SECONDS), _size(partial)
            if furthest >= file.size_bytes:
                return
            pause = next(pauses, None)
            if pause is None:
                raise MissingPartError(
                    f"{file.name} of {self.listing.repository} stays at "
                    f"{show_size(_size(partial))} of {show_size(file.size_bytes)}",
                    details=(_describe_cut(fault),),
                    hint="run the same command again: it goes on where it was",
                ) from fault
            self.report(f"{file.name}: cut at {show_size(_size(partial))}, going on in {pause} s")
            time.sleep(pause)

    def _receive(
        self, client: httpx.Client, file: RemoteFile, partial: Path, progress: ByteProgress
    ) -> httpx.HTTPError | None:
        """Add to the partial file over one connection, and give what broke that."""
        have, url = _size(partial), self.listing.url(file, self.environment)
        asked = {"range": f"bytes={have}-"} if have else {}
        try:
            with client.stream("GET", url, headers=asked) as answer:
                answer.raise_for_status()
                goes_on = answer.headers.get("content-range", "").startswith(f"bytes {have}-")
                progress.add(0 if goes_on else -have)
                _write(partial, answer, file.size_bytes, progress, goes_on=goes_on)
        except httpx.HTTPStatusError as fault:
            if not may_pass(fault.response.status_code):
                raise explain(fault, self.listing.repository, self.listing.commit) from fault
            return fault
        except httpx.HTTPError as fault:
            return fault
        return None

    def _partial(self, file: RemoteFile) -> Path:
        return self.folder / f"{file.name}.partial"


def _write(
    partial: Path, answer: httpx.Response, limit: int, progress: ByteProgress, *, goes_on: bool
) -> None:
    """Write what comes, and no more than one piece beyond the length that was promised."""
    with partial.open("ab" if goes_on else "wb") as file:
        for piece in answer.iter_bytes():
            file.write(piece)
            progress.add(len(piece))
            if file.tell() > limit:
                break
        file.flush()
        os.fsync(file.fileno())


def _describe_cut(fault: httpx.HTTPError | None) -> str:
    """Say what broke a transfer, without an address: some are signed."""
    if isinstance(fault, httpx.HTTPStatusError):
        return f"the hub answered {fault.response.status_code}"
    return f"{type(fault).__name__} {fault}".strip() if fault else "the answer ended early"


def _differs(path: Path, locked: LockedFile, file: RemoteFile) -> str | None:
    """Say how a file is not the one that the hub lists, or None if it is."""
    if locked.size_bytes != file.size_bytes:
        return f"{locked.size_bytes} bytes or more, but the hub lists {file.size_bytes}"
    kind, listed, found = "sha256", file.sha256, locked.sha256
    if listed is None:
        kind, listed, found = "git's sha1", file.git_sha1, _hash_for_git(path)
    return None if found == listed else f"{kind} {found}, but the hub lists {listed}"


def _hash_for_git(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
