"""A real model, small enough for two cores and built locally, and a drafter for it.

Importing this package is cheap; making a checkpoint imports torch and transformers.
"""

from pathlib import Path

from slipstream.proving_ground.smollm2 import make_smollm2

# Trained by `slipstream train` for SmolLM2-135M-Instruct; its card says how and how good it is.
SHIPPED_DRAFTER = Path(__file__).parent / "drafter"

__all__ = ["SHIPPED_DRAFTER", "make_smollm2"]
