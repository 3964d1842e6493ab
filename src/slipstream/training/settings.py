"""The settings of a training run: the drafter's design and the schedule."""

import math
from typing import Literal

from slipstream.records import Record

Method = Literal["dflash", "eagle3", "dflash2", "dspark"]
METHODS: tuple[Method, ...] = ("dflash", "eagle3", "dflash2", "dspark")


class DrafterDesign(Record):
    """The shape of a drafter; layer ids count hidden states, and 0 is the embedding.

    A block is the anchor and its draft tokens, whether they come in one pass or one after another.
    """

    method: Method = "dflash"
    layers: int
    intermediate_size: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int | None

    @property
    def draft_tokens(self) -> int:
        """Return how many tokens a block drafts: DSpark also drafts from the anchor's slot."""
        return self.block_size if self.method == "dspark" else self.block_size - 1


class Schedule(Record):
    """The number of steps, the learning rate and the batch shape."""

    steps: int
    learning_rate: float = 1e-3
    warm_up: float = 0.02
    rows: int = 4
    context: int = 512
    anchors: int = 48
    seed: int = 0
    judge_every: int = 500
    compiled: bool = True

    def rate_at(self, step: int) -> float:
        """Return the learning rate: a linear rise, then half a cosine down to a twentieth."""
        rise = max(1, round(self.steps * self.warm_up))
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        share = (step - rise) / max(1, self.steps - rise)
        return self.learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)
