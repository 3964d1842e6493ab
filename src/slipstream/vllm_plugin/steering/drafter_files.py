"""A drafter's safetensors in a folder: their tensors, and whether two drafters match.

Only the headers are read here. Two drafters match if an engine that runs one can hold the other in
the same places: the same names, shapes and types.
"""

import json
from pathlib import Path
from typing import Any

# Of one file's header; the largest published ones have less than a tenth.
MOST_HEADER_BYTES = 100 << 20
# Read by vLLM from the first drafter's folder, whatever is loaded later, and no safetensors.
MASK_EMBEDDING = "mask_embedding.pt"
SHOWN = 3

Headers = dict[str, tuple[str, tuple[int, ...]]]


def list_files(folder: Path) -> list[Path]:
    """Return the folder's safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"there are no safetensors in {folder}")
    return files


def read_headers(folder: Path) -> Headers:
    """Return the type and the shape of every tensor in a folder, by name."""
    found: Headers = {}
    for file in list_files(folder):
        for name, entry in _read_header(file).items():
            if name in found:
                raise ValueError(f"{name} is in two files of {folder}")
            found[name] = (str(entry["dtype"]), tuple(entry["shape"]))
    return found


def require_match(loaded: Headers, folder: Path) -> None:
    """Refuse a folder whose tensors have no place in the drafter that is loaded."""
    if (folder / MASK_EMBEDDING).exists():
        raise ValueError(f"{folder} has a {MASK_EMBEDDING}, which cannot be swapped")
    there = read_headers(folder)
    if wrong := sorted(name for name in loaded | there if loaded.get(name) != there.get(name)):
        shown = "; ".join(
            f"{name} is {_show(there.get(name))}, not {_show(loaded.get(name))}"
            for name in wrong[:SHOWN]
        )
        raise ValueError(f"{len(wrong)} tensors of {folder} do not match: {shown}")


def _read_header(file: Path) -> dict[str, Any]:
    """Read a file's header; whether the file is as long as it says is checked as it is opened."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 0 < length <= MOST_HEADER_BYTES:
            raise ValueError(f"{file} is no safetensors file")
        entries = json.loads(opened.read(length))
    if not isinstance(entries, dict):
        raise ValueError(f"{file} is no safetensors file")
    entries.pop("__metadata__", None)
    return entries


def _show(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if tensor is None else f"{tensor[0]} {list(tensor[1])}"
