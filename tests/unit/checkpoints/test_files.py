"""Of a safetensors file only its header is read, and a broken one is refused with a way out."""

import json
from pathlib import Path

import pytest

from slipstream.checkpoints.files import HubFiles, LocalFiles, Tensor, open_files, read_header
from slipstream.errors import InvalidInputError
from tests.unit.checkpoints.folders import LLAMA, write_checkpoint, write_safetensors

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
TENSORS = {"embed.weight": ("BF16", (6, 4)), "packed.weight": ("F4", (3, 8))}


def headed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def write_index(folder: Path, shards: dict[str, str]) -> None:
    index = {"metadata": {}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refuse(path: Path) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        read_header(path)
    return caught.value


def test_a_header_names_every_tensor_with_its_bytes(tmp_path: Path) -> None:
    assert read_header(write_safetensors(tmp_path / "model.safetensors", TENSORS)) == (
        Tensor(name="embed.weight", dtype="BF16", shape=(6, 4), size_bytes=48),
        Tensor(name="packed.weight", dtype="F4", shape=(3, 8), size_bytes=12),
    )
    assert read_header(write_safetensors(tmp_path / "empty.safetensors", {})) == ()


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_length_is_refused_with_both_lengths(tmp_path: Path, change: int) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", TENSORS)
    content = path.read_bytes()
    path.write_bytes(content[:-1] if change < 0 else content + b"\0")
    fault = refuse(path)
    assert str(len(content)) in fault.message
    assert str(len(content) + change) in fault.message
    assert fault.hint == "download model.safetensors again"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02\0\0",
        b"\0" * 8,
        (1 << 62).to_bytes(8, "little") + b"{}",
        headed(b"version https://git-lfs"),
        headed(b"\xff\xfe{}"),
        headed(b'{"a": '),
        headed(b"[]"),
        headed(b'"text"'),
        headed(b'{"a": 1}'),
        headed(b'{"a": {"dtype": "BF16"}}'),
        headed(b'{"a": {"data_offsets": [0]}}'),
    ],
)
def test_a_file_without_a_header_of_tensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    fault = refuse(path)
    assert "is not a complete safetensors file" in fault.message
    assert fault.hint == "download model.safetensors again"


def test_a_folder_gives_its_small_files_and_the_tensors_of_every_shard(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, LLAMA)
    files = open_files(str(folder))
    assert files.read_tensors() is None
    write_safetensors(folder / SHARDS[1], {"b": ("BF16", (1,))})
    write_safetensors(folder / SHARDS[0], {"a": ("BF16", (1,))})
    assert isinstance(files, LocalFiles)
    assert (files.origin, files.revision, files.gated) == ("folder", None, False)
    assert json.loads(files.read("config.json") or b"") == LLAMA
    assert files.read("tokenizer.json") is None
    assert [tensor.name for tensor in files.read_tensors() or ()] == ["a", "b"]


def test_where_there_is_an_index_its_shards_count_and_are_missed(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": SHARDS[0]})
    for file in (SHARDS[0], "consolidated.safetensors"):
        write_safetensors(tmp_path / file, {"a": ("BF16", (1,))})
    files = open_files(str(tmp_path))
    assert [tensor.name for tensor in files.read_tensors() or ()] == ["a"]
    write_index(tmp_path, {"a": SHARDS[0], "b": SHARDS[1]})
    with pytest.raises(InvalidInputError, match="lacks 1 of its 2 shards") as caught:
        files.read_tensors()
    assert (caught.value.details, caught.value.hint) == (SHARDS[1:], f"fetch {SHARDS[1]}")


@pytest.mark.parametrize("name", ["nothing", "./a/b", "/no/such/folder", "~/no-such", "a/b/c"])
def test_neither_a_folder_nor_a_hub_name_is_refused_without_asking_the_hub(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_files(name)
    assert name in caught.value.message
    assert "OWNER/MODEL" in caught.value.hint


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_a_huge_file_under_a_small_ones_name_is_not_fetched(file: str) -> None:
    present = {"config.json": 2, "model.safetensors": 2, file: 1 << 40}
    files = HubFiles(name="somebody/model", origin="hub", present=present)
    with pytest.raises(InvalidInputError, match=f"{file} of somebody/model has 1099511627776"):
        files.read_tensors() if "index" in file else files.read(file)
