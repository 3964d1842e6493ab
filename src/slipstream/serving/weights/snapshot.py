"""A repository's files in huggingface_hub's cache, compared with the hub's checksums.

huggingface_hub retries, locks and names the files; what the cache already has is not fetched
again.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.checkpoints.files import INDEX
from slipstream.checkpoints.hub import asking_hub, explain_absence, find_snapshot, is_offline
from slipstream.errors import InvalidInputError
from slipstream.serving.weights.lock import choose_files
from slipstream.serving.weights.progress import ByteProgress, Report, make_hub_bar, show_size
from slipstream.user_folders import model_cache

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SETTINGS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots of one repository: those in the cache, and those to download."""

    name: str
    environment: Mapping[str, str] = field(repr=False)
    report: Report
    draw: Report | None = None

    def resolve(self, revision: str | None) -> str:
        """Return a revision's commit; without a network, the one it was when last asked."""
        with asking_hub(self.name, revision):
            found = self._open_hub().resolve_revision(
                self.name,
                revision=revision,
                cache_dir=self._cache,
                local_files_only=self.offline,
            )
        return found.resolved

    def find(self, commit: str) -> Path | None:
        return find_snapshot(self.name, commit, self._cache)

    def fetch(self, commit: str, *, with_code: bool) -> tuple[Path, dict[str, str]]:
        """Download every file that an engine reads, and return the sha256 of the large ones."""
        if self.offline:
            raise explain_absence(self.name)
        hub = self._open_hub()
        with asking_hub(self.name, commit):
            listed = hub.model_info(self.name, revision=commit, files_metadata=True).siblings or []
            sizes = {file.rfilename: file.size or 0 for file in listed}
            names = choose_files(
                self.name, sizes, lambda: self._read_index(commit), with_code=with_code
            )
            folder = self._download(commit, {name: sizes[name] for name in names})
            self._require_checksums(commit, names)
        return folder, {
            file.rfilename: file.lfs.sha256
            for file in listed
            if file.lfs and file.rfilename in names
        }

    def fetch_settings(self, revision: str | None) -> Path:
        """Download the small files that describe the model, and return their folder."""
        with asking_hub(self.name, revision), ByteProgress(self.report, "", 0) as silent:
            return Path(
                self._open_hub().snapshot_download(
                    self.name,
                    revision=revision,
                    cache_dir=self._cache,
                    allow_patterns=list(SETTINGS),
                    local_files_only=self.offline,
                    tqdm_class=make_hub_bar(silent),
                )
            )

    def _download(self, commit: str, sizes: Mapping[str, int], *, again: bool = False) -> Path:
        from huggingface_hub import try_to_load_from_cache

        missing_bytes = sum(
            size
            for name, size in sizes.items()
            if again
            or try_to_load_from_cache(self.name, name, self._cache, revision=commit) is None
        )
        self._require_room(missing_bytes)
        work = f"downloading {self.name}"
        with ByteProgress(self.report, work, missing_bytes, self.draw) as progress:
            folder = self._open_hub().snapshot_download(
                self.name,
                revision=commit,
                cache_dir=self._cache,
                allow_patterns=[escape(name) for name in sizes],
                force_download=again,
                tqdm_class=make_hub_bar(progress),
            )
        return Path(folder)

    def _require_checksums(self, commit: str, names: Sequence[str]) -> None:
        """Compare the files with the hub's checksums, and download once more what differs."""
        self.report(f"checking {self.name} against the hub's checksums")
        wrong = self._find_wrong(commit, names)
        if not wrong:
            return
        self.report(f"checksum mismatch, downloading again: {', '.join(wrong)}")
        self._download(commit, dict.fromkeys(wrong, 0), again=True)
        if wrong := self._find_wrong(commit, names):
            raise InvalidInputError(
                f"{len(wrong)} files of {self.name} had a wrong checksum twice",
                details=tuple(wrong.values()),
                hint="check for a proxy that changes files, or set another hub with HF_ENDPOINT",
            )

    def _find_wrong(self, commit: str, names: Sequence[str]) -> dict[str, str]:
        hub = self._open_hub()
        checked = hub.verify_repo_checksums(self.name, revision=commit, cache_dir=self._cache)
        return {
            one["path"]: f"{one['path']}: {one['algorithm']} {one['actual']}, "
            f"but the hub lists {one['expected']}"
            for one in checked.mismatches
            if one["path"] in names
        }

    def _read_index(self, commit: str) -> bytes:
        hub = self._open_hub()
        return Path(
            hub.hf_hub_download(self.name, INDEX, revision=commit, cache_dir=self._cache)
        ).read_bytes()

    def _require_room(self, missing_bytes: int) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._cache).free
        if free < missing_bytes:
            raise InvalidInputError(
                f"{self.name} needs {show_size(missing_bytes)} more in {self._cache}, "
                f"and {show_size(free)} are free",
                hint="free some space there, or set HF_HUB_CACHE to a folder on a larger disk",
            )

    @property
    def offline(self) -> bool:
        return is_offline(self.environment)

    @property
    def _cache(self) -> Path:
        return model_cache(self.environment)

    def _open_hub(self) -> "HfApi":
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.environment.get("HF_ENDPOINT", "").rstrip("/") or None)
