"""A target and a drafter that fits it, as folders with the smallest files that are read."""

import json
from pathlib import Path

from tests.unit.serving.weights.pieces import make_shard
from tests.untrained_drafter import TARGET, DrafterShape, drafter_config

# Heads that two machines can share.
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET, **HEADS}


def write_pair(folder: Path, *, target: str = "target", weights: bool = False) -> list[str]:
    """Write both, and return the arguments that name them from that folder."""
    for name, config in ((target, CONFIG), ("drafter", drafter_config(CONFIG, DrafterShape()))):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        if weights:
            (folder / name / "model.safetensors").write_bytes(make_shard(1000, seed=1))
    return [target, "--drafter", "drafter"]
