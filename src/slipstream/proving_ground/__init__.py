"""A real model and drafters for it, small enough for two cores, built locally.

Importing this package is cheap; making a checkpoint imports torch and transformers.
"""

from pathlib import Path

from slipstream.proving_ground.smollm2 import make_smollm2
from slipstream.proving_ground.untrained_drafter import DrafterShape, make_untrained_drafter

# Trained by `slipstream train` for SmolLM2-135M-Instruct; its card says how and how good it is.
SHIPPED_DRAFTER = Path(__file__).parent / "drafter"

__all__ = ["SHIPPED_DRAFTER", "DrafterShape", "make_smollm2", "make_untrained_drafter"]
