"""Tiny checkpoints on disk: a config, a tokenizer, and safetensors whose weights are zeros."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from tests.untrained_drafter import weight_shapes

BITS = {"C64": 64, "I64": 64, "F32": 32, "BF16": 16, "F8_E4M3": 8, "U8": 8, "F4": 4}

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
Table = dict[str, Any]

LLAMA: Table = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}
LLAMA_TENSORS: Tensors = {
    "model.embed_tokens.weight": ("BF16", (300, 64)),
    "lm_head.weight": ("BF16", (300, 64)),
}
TOKENIZER: Table = {
    "version": "1.0",
    "added_tokens": [{"id": 3, "content": "<mask>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []},
}


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Write a header for these tensors, and as many zeros as it announces."""
    header: Table = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + end)
    return path


def write_checkpoint(
    folder: Path,
    config: Table,
    *,
    tensors: Tensors | None = None,
    tokenizer: Table | None = None,
    quantization: Table | None = None,
) -> Path:
    """Lay out a checkpoint; what is not given has no file."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "hf_quant_config.json": quantization,
    }
    for name, table in tables.items():
        if table is not None:
            (folder / name).write_text(json.dumps(table))
    if tensors is not None:
        write_safetensors(folder / "model.safetensors", tensors)
    return folder


def drafter_tensors(config: Table) -> Tensors:
    """Name the tensors of a drafter with such a config, as vLLM loads them."""
    return {name: ("BF16", shape) for name, shape in weight_shapes(config).items()}
