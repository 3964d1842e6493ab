"""What a drafter learns from: the target's tokens, weighed by what drafting them is worth.

The softmax runs over the frequent tokens and a fresh draw of the others, each of which stands for
many that were not drawn.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.training.cpu.batches import Floats, Numbers, TrainSample

FREQUENT_TOKENS = 4096
DRAWN_TOKENS = 1024
DPACE_ALPHA = 0.5
TAUGHT_SHARE = 0.9


def compute_loss(drafted: Any, head: Any, labels: tuple[Any, ...], block: int) -> Any:
    """Return the weighed loss of drafts, [blocks * places, hidden].

    `labels` are those of `SampledVocabulary.pick`. A draft learns mostly how likely the target's
    choices are, as far as the softmax has them, and a little which one the text has.
    """
    import torch

    correction, targets, choices, shares = labels
    likely = torch.log_softmax((drafted @ head.T).float() + correction, -1)
    counted = (targets >= 0).float()
    surprise = -likely.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    weights = weigh(surprise.detach(), counted, block - 1)
    taught = -(shares * likely.gather(1, choices)).sum(-1)
    loss = TAUGHT_SHARE * taught + (1 - TAUGHT_SHARE) * surprise
    return (loss * weights).sum() / counted.sum().clamp(min=1)


def weigh(surprise: Any, counted: Any, places: int) -> Any:
    """Return D-PACE's weights (https://arxiv.org/abs/2605.18810), 0 where nothing is counted.

    A place weighs as much as is expected to be accepted from it on, with smoothed confidence.
    """
    import torch

    sure, counted = (one.reshape(-1, places) for one in (torch.exp(-surprise), counted))
    smooth = torch.where(counted > 0, (1 - DPACE_ALPHA) * sure + DPACE_ALPHA, 1.0)
    reached = torch.cumprod(smooth, -1) * counted
    onwards = reached.flip(-1).cumsum(-1).flip(-1)
    return (onwards * counted).reshape(-1)


@dataclass(slots=True)
class SampledVocabulary:
    """The tokens of a step's softmax: the frequent ones and a sample of the rest."""

    frequent: Any
    rest: Any
    generator: np.random.Generator

    @classmethod
    def count(
        cls, samples: Sequence[TrainSample], vocabulary: int, generator: np.random.Generator
    ) -> "SampledVocabulary":
        """Find the frequent tokens of the responses."""
        counts: Counter[int] = Counter()
        for sample in samples:
            counts.update(sample.tokens[sample.response_start :].tolist())
        ranked = [token for token, _ in counts.most_common(FREQUENT_TOKENS)]
        others = np.setdiff1d(np.arange(vocabulary), ranked)
        missing = max(0, FREQUENT_TOKENS - len(ranked))
        frequent = np.concatenate([np.array(ranked, np.int64), others[:missing]])
        return cls(frequent, others[missing:], generator)

    def pick(self, targets: Numbers, choices: Numbers, shares: Floats) -> tuple[Any, ...]:
        """Return a step's tokens, what to add to their logits, and where targets and choices are.

        A token that was drawn counts for as many as the draw left out; a target of -1 stays -1. The
        shares of choices that are among the tokens make one; without any, the target has it all.
        """
        wanted = np.setdiff1d(targets[targets >= 0], self.frequent)[:DRAWN_TOKENS]
        drawn = self.generator.choice(
            self.rest, size=min(DRAWN_TOKENS, len(self.rest)), replace=False
        )
        others = drawn[~np.isin(drawn, wanted)][: len(drawn) - len(wanted)]
        tokens = np.concatenate([self.frequent, wanted, others])
        correction = np.zeros(len(tokens), np.float32)
        if len(others):
            stood_for = (len(self.rest) - len(wanted)) / len(others)
            correction[len(tokens) - len(others) :] = np.log(stood_for)
        order = np.argsort(tokens)
        tokens, correction = tokens[order], correction[order]
        places, among = (
            np.searchsorted(tokens, one).clip(max=len(tokens) - 1) for one in (targets, choices)
        )
        found = np.where(tokens[places] == targets, places, -1)
        known = np.where(tokens[among] == choices, shares, 0)
        total = known.sum(-1, keepdims=True)
        among[:, 0] = np.where(total[:, 0] > 0, among[:, 0], found.clip(min=0))
        alone = np.eye(1, choices.shape[-1], dtype=np.float32)
        taught = np.where(total > 0, known / total.clip(1e-9), alone)
        return tokens, correction, found, among, taught
