"""A small model as files: whole shards, their index, and one flipped bit."""

import json
from random import Random

CONFIG = b'{"model_type": "llama"}'


def make_shard(size: int, *, seed: int = 1) -> bytes:
    """Make a whole safetensors file of one tensor, in which no byte is like its neighbours."""
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"seed": str(seed)}, "weight": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + Random(seed).randbytes(size)


def make_index(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor {shard}": shard for shard in shards}}).encode()


def flip(content: bytes, at: int = -1) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)
