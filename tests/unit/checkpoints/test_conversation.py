"""The chat template is found where transformers finds it, and odd files do no harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.checkpoint import Conversation
from slipstream.errors import InvalidInputError
from tests.unit.checkpoints.folders import write_checkpoint

CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}


def read(folder: Path, **files: Any) -> Conversation:
    """Read a checkpoint with these JSON files beside its config."""
    write_checkpoint(folder, CONFIG)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    conversation = read_checkpoint(str(folder)).conversation
    assert conversation is not None
    return conversation


def test_a_file_of_its_own_comes_before_the_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"own \xff")
    assert read(tmp_path, tokenizer_config={"chat_template": "other"}).template == "own \ufffd"


def test_a_processors_template_comes_before_the_tokenizers(tmp_path: Path) -> None:
    files = {"chat_template": {"chat_template": "a"}, "tokenizer_config": {"chat_template": "b"}}
    assert read(tmp_path, **files).template == "a"


@pytest.mark.parametrize(
    ("stated", "template"),
    [
        ([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], "b"),
        ([{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}], "a"),
        (["default"], None),
        ({"default": "a"}, None),
        (7, None),
    ],
)
def test_of_several_templates_the_one_for_tools_is_read(
    stated: object, template: str | None, tmp_path: Path
) -> None:
    assert read(tmp_path, tokenizer_config={"chat_template": stated}).template == template


def test_sampling_is_what_vllm_would_take(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "top_p": None, "min_p": float("nan")}
    config |= {"do_sample": True, "eos_token_id": 2}
    assert read(tmp_path, generation_config=config).sampling == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("response", ["text", {"fields": ["thinking"]}, {"fields": None}])
def test_a_response_template_of_another_shape_is_none(response: object, tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config={"response_template": response}).response_fields == ()


def test_a_generation_config_that_is_no_json_is_an_error_of_the_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(InvalidInputError, match=r"generation_config\.json"):
        read_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("stated", "tensors", "layers"),
    [
        ({}, None, 0),
        ({"num_nextn_predict_layers": 1}, None, 1),
        ({"text_config": {"mtp_num_hidden_layers": 1}}, None, 1),
        ({"num_nextn_predict_layers": 1}, ["model.layers.3.w"], 0),
        ({"num_nextn_predict_layers": 1}, ["model.layers.4.w"], 1),
        ({"num_nextn_predict_layers": 2}, ["mtp.layers.0.w"], 2),
    ],
)
def test_mtp_layers_count_if_their_weights_are_there(
    stated: dict[str, Any], tensors: list[str] | None, layers: int, tmp_path: Path
) -> None:
    shapes = {name: ("BF16", (1,)) for name in tensors} if tensors else None
    folder = write_checkpoint(tmp_path, CONFIG | stated, tensors=shapes)
    assert read_checkpoint(str(folder)).predicting_layers == layers
