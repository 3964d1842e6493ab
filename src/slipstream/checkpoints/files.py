"""Where a checkpoint's small files come from: a folder, or the hub's metadata calls.

Weights are never read: of a safetensors file only its header is, the first 8 bytes and the
JSON that they announce.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.checkpoints.hub import (
    asking_hub,
    explain_absence,
    find_snapshot,
    keep_names,
    parse_base_models,
    require_hub_name,
)
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.user_folders import find_local

INDEX = "model.safetensors.index.json"
GGUF_MESSAGE = "GGUF models cannot be served, only models with safetensors"
MOST_BYTES = 128 << 20  # of a config, a tokenizer or an index; the largest tokenizers have 35 MB


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles(ABC):
    """Access to the files of a checkpoint."""

    name: str
    origin: str
    revision: str | None = None
    licence: str | None = None
    gated: bool | None = None

    @abstractmethod
    def read(self, file: str) -> bytes | None:
        """Return a small file whole, or None if there is none of this name."""

    def read_base_models(self) -> tuple[str, ...] | None:
        """Return the models that this one was made from, as its card names them."""
        return parse_base_models(self.read("README.md"))

    @abstractmethod
    def read_tensors(self) -> tuple[Tensor, ...] | None:
        """Return every tensor's header, or None if there are no safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles(CheckpointFiles):
    folder: Path

    def read(self, file: str) -> bytes | None:
        path = self.folder / file
        return path.read_bytes() if path.is_file() else None

    def read_tensors(self) -> tuple[Tensor, ...] | None:
        shards = self._list_shards()
        tensors = [tensor for shard in shards for tensor in read_header(shard)]
        return tuple(tensors) if shards else None

    def _list_shards(self) -> list[Path]:
        """List what the index names, and miss what is not there; without one, every file."""
        index = self.read(INDEX)
        if index is None:
            return sorted(self.folder.glob("*.safetensors"))
        try:
            named = sorted(set(json.loads(index)["weight_map"].values()))
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise InvalidInputError(
                f"{INDEX} of {self.name} names no shards", hint=f"download {INDEX} again"
            ) from fault
        missing = tuple(name for name in named if not (self.folder / name).is_file())
        if missing:
            raise InvalidInputError(
                f"{self.name} lacks {len(missing)} of its {len(named)} shards",
                details=missing,
                hint=f"fetch {missing[0]}",
            )
        return [self.folder / name for name in named]


def read_header(path: Path) -> tuple[Tensor, ...]:
    """Read the header of one safetensors file and check that the file is as long as it says."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = os.fstat(file.fileno()).st_size
        try:
            if not 0 < length <= size - 8:
                raise ValueError(f"the header claims {length} bytes")
            tensors, end = _parse_header(file.read(length))
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise InvalidInputError(
                f"{path.name} is not a complete safetensors file: {fault}",
                hint=f"download {path.name} again",
            ) from fault
    if size != 8 + length + end:
        raise InvalidInputError(
            f"{path.name} has {size} bytes, but its header needs {8 + length + end}",
            hint=f"download {path.name} again",
        )
    return tensors


def _parse_header(content: bytes) -> tuple[tuple[Tensor, ...], int]:
    """Read the JSON of a header: the tensors, and where the last of them ends."""
    entries: dict[str, Any] = json.loads(content)
    entries.pop("__metadata__", None)
    tensors, last = [], 0
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        last = max(last, end)
        shape = tuple(entry["shape"])
        tensors.append(Tensor(name, entry["dtype"], shape, size_bytes=end - start))
    return tuple(tensors), last


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFiles(CheckpointFiles):
    """A checkpoint on the hub, read at one revision through metadata calls only."""

    # Of each file that is there the bytes, None if the hub does not say.
    present: Mapping[str, int | None]
    base_models: tuple[str, ...] | None = None

    def read_base_models(self) -> tuple[str, ...] | None:
        """Return what the hub read in the card."""
        return self.base_models

    def read(self, file: str) -> bytes | None:
        if file not in self.present:
            return None
        self._require_small(file)
        from huggingface_hub import hf_hub_download

        with asking_hub(self.name):
            path = hf_hub_download(self.name, file, revision=self.revision)
        return Path(path).read_bytes()

    def _require_small(self, file: str) -> None:
        """Refuse a file that would fill a disk under the name of a small one."""
        size = self.present.get(file) or 0
        if size > MOST_BYTES:
            raise InvalidInputError(
                f"{file} of {self.name} has {size} bytes, more than such a file needs",
                hint="choose another repository",
            )

    def read_tensors(self) -> tuple[Tensor, ...] | None:
        """Fetch the headers of every shard by range reads."""
        if not any(file.endswith(".safetensors") for file in self.present):
            return None
        self._require_small(INDEX)
        from huggingface_hub import HfApi
        from huggingface_hub.errors import NotASafetensorsRepoError

        try:
            with asking_hub(self.name):
                metadata = HfApi().get_safetensors_metadata(self.name, revision=self.revision)
        except MissingPartError as fault:
            if isinstance(fault.__cause__, NotASafetensorsRepoError):
                return None
            raise
        return tuple(
            Tensor(name, str(info.dtype), tuple(info.shape), end - start)
            for shard in metadata.files_metadata.values()
            for name, info in shard.tensors.items()
            for start, end in [info.data_offsets]
        )


def open_files(name: str, revision: str | None = None) -> CheckpointFiles:
    """Open a folder if there is one of this name, else a repository of the hub."""
    folder = find_local(name)
    if folder.is_dir():
        files = LocalFiles(name=name, origin="folder", gated=False, folder=folder)
        _require_safetensors(files, [path.name for path in folder.iterdir()])
        return files
    require_hub_name(name)
    return _open_hub(name, revision)


def _require_safetensors(files: CheckpointFiles, present: Iterable[str]) -> None:
    """Refuse weights that are there as GGUF only."""
    endings = {Path(name).suffix for name in present}
    if ".gguf" in endings and ".safetensors" not in endings:
        base = files.read_base_models()
        hint = f"slipstream plan {base[0]}" if base else "slipstream models"
        raise InvalidInputError(f"{files.name}: {GGUF_MESSAGE}", hint=hint)


def _open_hub(name: str, revision: str | None) -> CheckpointFiles:
    """Ask the hub for the commit and the list of files, or else open what the cache has."""
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    if constants.HF_HUB_OFFLINE and not cached.is_dir():
        raise explain_absence(name)  # The hub's client takes a third of a second to import.
    from huggingface_hub import HfApi

    try:
        with asking_hub(name, revision):
            info = HfApi().model_info(name, revision=revision, timeout=10, files_metadata=True)
            # It leaves the branch's commit in the cache, for a start without a network.
            HfApi().resolve_revision(name, revision=revision)
    except MissingPartError:
        folder = find_snapshot(name, revision)
        if folder is None:
            raise
        return LocalFiles(name=name, revision=folder.name, origin="hub", folder=folder)
    files = HubFiles(
        name=name,
        revision=info.sha,
        origin="hub",
        licence=getattr(info.card_data, "license", None),
        gated=None if info.gated is None else bool(info.gated),
        present={one.rfilename: one.size for one in info.siblings or ()},
        base_models=keep_names(getattr(info.card_data, "base_model", None)),
    )
    _require_safetensors(files, files.present)
    return files
