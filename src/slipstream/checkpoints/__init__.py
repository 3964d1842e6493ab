"""Models by what their files say, and whether two of them fit."""

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.reading import read_checkpoint

__all__ = ["Checkpoint", "read_checkpoint"]
