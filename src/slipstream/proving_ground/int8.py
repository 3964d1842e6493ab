"""The proving ground's model in 8 bits, for processors that multiply those fastest.

vLLM's CPU build serves such a checkpoint of compressed-tensors with the instructions that
multiply bytes (VNNI).
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.atomic_files import make_folder_once
from slipstream.errors import EngineError

WITHIN_SECONDS = 120.0
TIMING = "slipstream.vllm_plugin.int8_timing"
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                **{"num_bits": 8, "type": "int", "symmetric": True},
                **{"strategy": "channel", "dynamic": False},
            },
            "input_activations": {
                **{"num_bits": 8, "type": "int", "symmetric": True},
                **{"strategy": "token", "dynamic": True},
            },
        }
    },
}


def make_int8(source: Path) -> Path:
    """Return a folder beside `source` with the model in 8 bits, making it if it is not there."""
    folder = source.with_name(f"{source.name}-W8A8")
    return make_folder_once(folder, lambda partial: _quantize(source, partial))


def _quantize(source: Path, folder: Path) -> None:
    """Round the weights of all layers, each output by a scale of its own."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder, dirs_exist_ok=True)
    weights: dict[str, Any] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        weights[name] = weight
        if name.endswith("_proj.weight"):
            scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            weights[name] = (weight.float() / scale).round().to(torch.int8)
            weights[f"{name}_scale"] = scale
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def compare_products(environment: Mapping[str, str]) -> float:
    """Return the time of the engine's products in 8 bits, as a share of that in float32."""
    command = [sys.executable, "-P", "-m", TIMING]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WITHIN_SECONDS
    )
    if done.returncode:
        raise EngineError(
            "the engine's matrix products could not be timed",
            details=tuple(done.stderr.splitlines()[-3:]),
            hint=f"{sys.executable} -m {TIMING}",
        )
    return float(done.stdout.splitlines()[-1])
