"""Which of a model's files an engine reads, and whether they are loadable.

Only safetensors are taken: another format can run code while it is loaded.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from slipstream.checkpoints.files import INDEX, read_header
from slipstream.errors import InvalidInputError

_PLACES = (".", "additional_chat_templates")
_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".safetensors")


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
        raise InvalidInputError(
            f"{name} has no safetensors",
            hint="take a repository that has them: other formats can run code when loaded",
        )
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
            hint="fetch what is named here again",
        )


def _read_shard_names(name: str, index: bytes) -> frozenset[str]:
    try:
        return frozenset(json.loads(index)["weight_map"].values())
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise InvalidInputError(
            f"{INDEX} of {name} names no shards", hint=f"fetch {INDEX} again"
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
                hint=f"fetch {path.name} again",
            )
        reached = end
