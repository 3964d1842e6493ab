"""vLLM's TurboQuant slots by variant and head size, and how many layers of a model stay plain."""

import json
import sys
from pathlib import Path

from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization.turboquant.config import TQ_PRESETS, TurboQuantConfig


def count_plain_layers(model: str) -> int:
    config = EngineArgs(model=model, skip_tokenizer_init=True).create_engine_config()
    return len(TurboQuantConfig.get_boundary_skip_layers(config.model_config))


def main() -> None:
    job = json.load(sys.stdin)
    slots = {
        variant: {
            size: TurboQuantConfig.from_cache_dtype(variant, size).slot_size_aligned
            for size in job["head_sizes"]
        }
        for variant in TQ_PRESETS
    }
    plain = {name: count_plain_layers(model) for name, model in job["models"].items()}
    Path(job["outcome"]).write_text(json.dumps({"slots": slots, "plain_layers": plain}))


main()
