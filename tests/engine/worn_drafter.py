"""The shipped drafter with noise on its weights: it fits its target and is accepted less often."""

import shutil
from pathlib import Path

from slipstream.proving_ground import SHIPPED_DRAFTER


def make_worn_drafter(folder: Path, wear: float) -> Path:
    """Write the drafter, unless it is there; `wear` is the noise in deviations of each matrix."""
    if folder.exists():
        return folder
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(SHIPPED_DRAFTER, folder)
    chance = torch.Generator().manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.dim() > 1:
            exact = tensor.float()
            noise = torch.randn(exact.shape, generator=chance) * exact.std() * wear
            weights[name] = (exact + noise).to(tensor.dtype)
    save_file(weights, folder / "model.safetensors")
    return folder
