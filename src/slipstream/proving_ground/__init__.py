"""A real model and drafters for it, small enough for two cores, made on the spot.

Importing this package is cheap; making a checkpoint imports torch and transformers.
"""

from slipstream.proving_ground.smollm2 import make_smollm2
from slipstream.proving_ground.untrained_drafter import DrafterShape, make_untrained_drafter

__all__ = ["DrafterShape", "make_smollm2", "make_untrained_drafter"]
