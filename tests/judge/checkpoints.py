"""Checkpoints of published models without their weights, as vLLM and the planner read them.

`models/` has the configurations, each with its source and the size of the weights. The weights
here are sparse files with a header, the tokenizer is 256 bytes and the marks of conversations:
whatever needs the values of either does not work with them.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.reading import read_checkpoint
from slipstream.errors import MissingPartError

_MODELS = Path(__file__).parent / "models"
_STORED = {"fp8": "F8_E4M3", "int8": "I8", None: "BF16"}
_MTP_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|tool_call>", "<|channel>"]
_MARKS += ["[TOOL_CALLS]", "[THINK]", "[/THINK]", "<|start|>", "<|channel|>", "<|message|>"]
_MARKS += ["<|end|>", "<|return|>", "<|call|>", "<|constrain|>", "<image_soft_token>", "[IMG]"]
_MARKS += ["<channel|>", "<tool_call|>", "<minimax:tool_call>", "</minimax:tool_call>", "<eos>"]


@dataclass(frozen=True, slots=True)
class Model:
    """A published model: its config, the size of its weights, where both are from, its drafter.

    `marks` are the parts of its chat template by which a family is recognized.
    """

    name: str
    source: str
    bytes: int
    config: dict[str, Any]
    drafter: str | None = None
    marks: tuple[str, ...] = ()

    @property
    def is_drafter(self) -> bool:
        return "dflash_config" in self.config

    @property
    def scheme(self) -> str | None:
        """Return how the weights are stored, None for the type that the config names."""
        stated = self.config.get("quantization_config")
        if stated is None:
            return None
        bits = json.dumps(stated)
        whole_bytes = stated["quant_method"] == "fp8" or '"num_bits": 8' in bits
        integers = '"type": "int"' in bits
        return ("int8" if integers else "fp8") if whole_bytes else "packed"


@cache
def load_models() -> dict[str, Model]:
    """Return every model of the folder by its name on the hub."""
    read = [Model(**json.loads(file.read_text())) for file in sorted(_MODELS.glob("*.json"))]
    return {model.name: model for model in read}


def list_targets() -> list[str]:
    return [name for name, model in load_models().items() if not model.is_drafter]


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write the files of a model into a folder of its own, and return that."""
    model = load_models()[name]
    own = folder / name.replace("/", "--")
    own.mkdir(parents=True, exist_ok=True)
    (own / "config.json").write_text(json.dumps(model.config))
    _write_weights(model, own / "model.safetensors")
    if not model.is_drafter:
        _write_tokenizer(model, own)
    return own


def read_known(name: str, folder: Path) -> Checkpoint:
    """Read a target as if its files were on the hub, under its name there.

    A drafter is left to the catalogue: of its config only what is known there is published.
    """
    if name not in load_models() or load_models()[name].is_drafter:
        raise MissingPartError(f"{name} is not a target of {_MODELS.name}", hint=name)
    own = folder / name.replace("/", "--")
    read = read_checkpoint(str(own if own.is_dir() else write_checkpoint(name, folder)))
    # A hash of that tokenizer would only say that all models have the same.
    return read.model_copy(update={"name": name, "source": "hub", "tokenizer_sha256": None})


def _write_weights(model: Model, file: Path) -> None:
    """Write a header for so many bytes, with the layers that predict if the config has them."""
    names = ["model.layers.0.weight", *_name_predicting(model.config)]
    kind = _STORED.get(model.scheme, "U8")
    size = model.bytes // 2 // len(names) * 2
    tensors = [(name, kind, size // (2 if kind == "BF16" else 1), size) for name in names]
    # Every checkpoint has norms, and vLLM takes its own type from what all tensors can become.
    tensors.append(("model.norm.weight", "BF16", 1, 2))
    header, end = {}, 0
    for name, dtype, elements, length in tensors:
        header[name] = {"dtype": dtype, "shape": [elements], "data_offsets": [end, end + length]}
        end += length
    content = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(len(content).to_bytes(8, "little") + content)
        opened.truncate(8 + len(content) + end)


def _name_predicting(config: dict[str, Any]) -> list[str]:
    text = config.get("text_config") or config
    if not any(text.get(key) for key in _MTP_KEYS):
        return []
    return [f"model.layers.{text['num_hidden_layers']}.mtp.weight"]


def _write_tokenizer(model: Model, folder: Path) -> None:
    """Write a tokenizer of bytes whose template has the marks by which parsers are chosen."""
    letters = sorted(_name_bytes().values())
    template = "{{ messages }}{# " + " ".join(model.marks) + " #}"
    added = [
        {"id": 256 + at, "content": mark, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for at, mark in enumerate(_MARKS)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level | {"use_regex": True},
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {letter: at for at, letter in enumerate(letters)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    decoder = {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in added}
    settings |= {"added_tokens_decoder": decoder, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _name_bytes() -> dict[int, str]:
    """Return the letter of every byte, as byte-level BPE has it: printable ones are themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + at) for at, byte in enumerate(others)
    }
