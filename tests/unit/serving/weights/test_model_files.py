"""What an engine reads is chosen out of what is there, and what it could not load is refused."""

import json
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.weights.lock import choose_files, require_whole
from tests.unit.serving.weights.pieces import make_index, make_shard

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
NEEDED = (
    "additional_chat_templates/tools.jinja",
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    "qwen.tiktoken",
    "tokenizer.model",
)
OTHERS = (
    "../escaped.json",
    "/etc/escaped.json",
    "README.md",
    "additional_chat_templates/../../escaped.json",
    "onnx/config.json",
    "original/model.safetensors",
    "pytorch_model.bin",
    "consolidated.00.pth",
)


def choose(*present: str, index: bytes = b"", with_code: bool = False) -> tuple[str, ...]:
    return choose_files("maker/model", present, lambda: index, with_code=with_code)


def refuse(*present: str, index: bytes = b"") -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        choose(*present, index=index)
    return caught.value


def find_faults(folder: Path, *names: str) -> tuple[str, ...]:
    try:
        require_whole(folder, names)
    except InvalidInputError as fault:
        return fault.details
    return ()


def test_only_what_an_engine_reads_is_chosen() -> None:
    assert choose(*NEEDED, *OTHERS, "model.safetensors") == tuple(
        sorted((*NEEDED, "model.safetensors"))
    )


def test_code_is_chosen_only_if_it_is_asked_for() -> None:
    assert choose("modeling.py", "model.safetensors") == ("model.safetensors",)
    assert "modeling.py" in choose("modeling.py", "model.safetensors", with_code=True)


def test_where_there_is_an_index_only_the_shards_that_it_names_are_chosen() -> None:
    present = ("consolidated.safetensors", FIRST, SECOND, INDEX)
    assert choose(*present, index=make_index(FIRST, SECOND)) == (FIRST, SECOND, INDEX)


def test_a_shard_that_the_index_names_is_missed() -> None:
    fault = refuse(FIRST, INDEX, index=make_index(FIRST, SECOND))
    assert fault.message == "maker/model lacks 1 of its 2 shards"
    assert fault.details == (SECOND,)
    assert fault.hint == f"fetch {SECOND}"


@pytest.mark.parametrize("index", [b"{}", b"[]", b"not JSON", b'{"weight_map": 1}'])
def test_an_index_that_names_nothing_is_refused(index: bytes) -> None:
    assert refuse(FIRST, INDEX, index=index).message == f"{INDEX} of maker/model names no shards"


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "original/model.safetensors"])
def test_a_model_without_safetensors_is_refused(file: str) -> None:
    fault = refuse("config.json", file)
    assert fault.message == "maker/model has no safetensors"
    assert "can run code" in fault.hint


def test_whole_files_pass_and_every_other_is_named(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(make_shard(100))
    assert find_faults(tmp_path, FIRST, "config.json") == ()
    (tmp_path / SECOND).write_bytes(make_shard(100)[:-1])
    assert [fault.split()[0] for fault in find_faults(tmp_path, FIRST, SECOND)] == [SECOND]


def write_tensors(path: Path, offsets: list[list[int]]) -> None:
    tensors = {str(at): {"dtype": "U8", "shape": [1], "data_offsets": at} for at in offsets}
    header = json.dumps(tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 10)


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([[0, 4], [6, 10]], "at byte 6 of its data, where 4 is next"),
        ([[0, 6], [4, 10]], "at byte 4 of its data, where 6 is next"),
        ([[2, 10]], "at byte 2 of its data, where 0 is next"),
    ],
)
def test_tensors_that_overlap_or_leave_a_gap_are_refused(
    tmp_path: Path, offsets: list[list[int]], told: str
) -> None:
    write_tensors(tmp_path / FIRST, offsets)
    assert find_faults(tmp_path, FIRST) == (f"{FIRST} has a tensor {told}",)


def test_tensors_may_stand_in_any_order_and_be_empty(tmp_path: Path) -> None:
    write_tensors(tmp_path / FIRST, [[4, 10], [0, 4], [4, 4]])
    assert find_faults(tmp_path, FIRST) == ()
