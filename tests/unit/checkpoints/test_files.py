"""Of a safetensors file only its header is read, and a broken one is refused with a way out."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints.files import HubFiles, LocalFiles, Tensor, open_files, read_header
from slipstream.errors import InvalidInputError
from tests.unit.checkpoints.folders import LLAMA, write_checkpoint, write_safetensors

TENSORS = {"embed.weight": ("BF16", (6, 4)), "packed.weight": ("F4", (3, 8))}


def write_header(path: Path, header: bytes, weights: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + weights)
    return path


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


def test_a_file_without_tensors_is_whole(tmp_path: Path) -> None:
    assert read_header(write_safetensors(tmp_path / "model.safetensors", {})) == ()


def test_a_file_that_was_cut_short_is_refused_with_both_lengths(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", TENSORS)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    fault = refuse(path)
    assert fault.message == (
        f"model.safetensors has {whole - 1} bytes, but its header needs {whole}"
    )
    assert fault.hint == "download model.safetensors again"


def test_a_file_with_bytes_left_over_is_refused_too(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", TENSORS)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    assert refuse(path).message == (
        f"model.safetensors has {whole + 1} bytes, but its header needs {whole}"
    )


def test_a_header_longer_than_its_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    fault = refuse(path)
    assert fault.message == (
        f"model.safetensors is not a complete safetensors file: the header claims {1 << 62} bytes"
    )
    assert fault.hint == "download model.safetensors again"


@pytest.mark.parametrize("content", [b"", b"\x02\0\0", b"\0" * 8])
def test_a_file_without_a_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert "is not a complete safetensors file" in refuse(path).message


@pytest.mark.parametrize("header", [b"version https://git-lfs", b"\xff\xfe{}", b'{"a": '])
def test_a_header_that_is_no_json_is_refused(tmp_path: Path, header: bytes) -> None:
    fault = refuse(write_header(tmp_path / "model.safetensors", header))
    assert fault.message.startswith("model.safetensors is not a complete safetensors file: ")
    assert fault.hint == "download model.safetensors again"


@pytest.mark.parametrize(
    "header", [[], "text", {"a": 1}, {"a": {"dtype": "BF16"}}, {"a": {"data_offsets": [0]}}]
)
def test_a_header_that_is_json_of_another_kind_is_refused(tmp_path: Path, header: Any) -> None:
    path = write_header(tmp_path / "model.safetensors", json.dumps(header).encode())
    assert "is not a complete safetensors file" in refuse(path).message


def test_a_folder_gives_its_small_files_and_the_tensors_of_every_shard(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, LLAMA)
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"b": ("BF16", (1,))})
    write_safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", (1,))})
    files = open_files(str(folder))
    assert isinstance(files, LocalFiles)
    assert (files.origin, files.revision, files.gated) == ("folder", None, False)
    assert json.loads(files.read("config.json") or b"") == LLAMA
    assert files.read("tokenizer.json") is None
    assert [tensor.name for tensor in files.read_tensors() or ()] == ["a", "b"]


def test_a_folder_without_safetensors_has_unknown_tensors(tmp_path: Path) -> None:
    assert open_files(str(write_checkpoint(tmp_path, LLAMA))).read_tensors() is None


def test_where_there_is_an_index_only_the_shards_that_it_names_count(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "model-00001-of-00001.safetensors"})
    for file in ("model-00001-of-00001.safetensors", "consolidated.safetensors"):
        write_safetensors(tmp_path / file, {"a": ("BF16", (1,))})
    tensors = open_files(str(tmp_path)).read_tensors()
    assert [tensor.name for tensor in tensors or ()] == ["a"]


def test_a_shard_that_the_index_names_and_that_is_not_there_is_missed(tmp_path: Path) -> None:
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    write_index(tmp_path, {"a": files[0], "b": files[1]})
    write_safetensors(tmp_path / files[0], {"a": ("BF16", (1,))})
    with pytest.raises(InvalidInputError) as caught:
        open_files(str(tmp_path)).read_tensors()
    assert caught.value.message == f"{tmp_path} lacks 1 of its 2 shards"
    assert caught.value.details == (files[1],)
    assert caught.value.hint == f"fetch {files[1]}"


@pytest.mark.parametrize("name", ["nothing", "./a/b", "/no/such/folder", "~/no-such", "a/b/c"])
def test_neither_a_folder_nor_a_hub_name_is_refused_without_asking_the_hub(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_files(name)
    assert caught.value.message == (
        f"there is no folder {name}, and it is not the name of a model on the hub"
    )
    assert caught.value.hint == "name a folder with a config.json, or OWNER/MODEL"


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_a_huge_file_under_a_small_ones_name_is_not_fetched(file: str) -> None:
    files = HubFiles(
        name="somebody/model",
        revision="main",
        origin="hub",
        licence=None,
        gated=False,
        present={"config.json": 2, "model.safetensors": 2, file: 1 << 40},
    )
    with pytest.raises(InvalidInputError, match=f"{file} of somebody/model has 1099511627776"):
        files.read_tensors() if "index" in file else files.read(file)
