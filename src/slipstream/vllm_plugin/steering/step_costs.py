"""The seconds of a step, as one line over all batches, learnt from every step.

A step reads prompts, verifies tokens and drafts the next ones, in any mixture, and all of them
teach the same line. It follows the latest few hundred steps, so a longer context or a busy machine
is in it; a stall counts as no more than a slow step.
"""

from typing import Any, NamedTuple

import numpy as np

FORGETTING = 0.998
# An engine's first steps set things up.
WARM_UP_STEPS = 3
# The usual error of a step's time, relative to it, and by how many of them one may be too slow.
# None is too fast by chance.
NOISE = 0.08
MOST_ERRORS = 3.0
# A drafter's fixed part and rows, and the fixed part of verifying, as shares of the target's: what
# is assumed before one is seen.
ASSUMED_AFTER = 9
ASSUMED, ASSUMED_WITHIN = (0.2, 0.3, 0.05), (0.2, 0.3, 0.1)
_FEATURES = 5
# A token of a prompt as a share of one that is sampled, for which logits are computed.
PROMPT_TOKEN = 0.8
# Seconds that each of them may take, before anything is known.
_UNKNOWN = (np.array((1.0, 0.05, 1.0, 0.05, 0.2)) / NOISE) ** 2


class Work(NamedTuple):
    """What a step does: sequences that generate, prompt and draft tokens, the width drafted."""

    sequences: float
    prompt: float = 0.0
    verified: float = 0.0
    width: float = 0.0
    # Sequences that a draft is made for: those that only read their prompt are among them.
    rows: float | None = None
    # The share of such steps that verify anything; of one step, whether it does.
    verifying: float | None = None


class StepCosts:
    """Recursive least squares of the relative error; the latest steps count most."""

    def __init__(self) -> None:
        self.steps = 0
        self._drafted = False
        self.weights = np.zeros(_FEATURES)
        self.covariance = np.diag(_UNKNOWN)

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from one step."""
        self.steps += 1
        if self.steps <= WARM_UP_STEPS:
            return
        row = _describe(work) / seconds
        gain = self.covariance @ row
        scale = FORGETTING + float(row @ gain)
        error = min(1 - float(row @ self.weights), MOST_ERRORS * NOISE * scale**0.5)
        self.weights += gain * (error / scale)
        self.covariance = (self.covariance - np.outer(gain, gain) / scale) / FORGETTING
        self._bound()
        self._drafted |= work.width > 0
        if self.steps == ASSUMED_AFTER and not self._drafted:
            self._assume()

    def _bound(self) -> None:
        """Keep the covariance of what was long not seen within what is assumed of the unknown."""
        scale = np.sqrt(np.minimum(1.0, _UNKNOWN / self.covariance.diagonal()))
        self.covariance *= np.outer(scale, scale)

    def _assume(self) -> None:
        """Assume what drafting costs, so that one slow step cannot make it look too dear."""
        fixed, token = self.weights[:2]
        step = max(fixed, 0) + max(token, 0)
        base = np.array((step, max(token, fixed / 32), step))
        self.weights[2:] = base * ASSUMED
        self.covariance[2:, :] = self.covariance[:, 2:] = 0
        self.covariance[2:, 2:] = np.diag((base * ASSUMED_WITHIN / NOISE) ** 2)

    def expect(self, work: Work) -> float:
        """Return the seconds that such a step takes now; nothing that it does takes less than 0."""
        return max(1e-6, float(_describe(work) @ self.weights))

    def doubt(self, work: Work) -> float:
        """Return the standard error of what is expected, in seconds."""
        row = _describe(work)
        return NOISE * float(np.sqrt(max(0.0, row @ self.covariance @ row)))

    @property
    def per_token(self) -> float:
        """Seconds that one more verified token takes."""
        return max(0.0, float(self.weights[1]))

    @property
    def per_verification(self) -> float:
        """Seconds that a step takes longer if it verifies anything."""
        return max(0.0, float(self.weights[4]))

    def dump(self) -> dict[str, Any]:
        return {"weights": self.weights.tolist(), "covariance": self.covariance.tolist()}

    def load(self, found: Any) -> None:
        """Begin with what an earlier engine has learnt; what is not sound is left out."""
        weights = np.asarray(found["weights"], float)
        covariance = np.asarray(found["covariance"], float)
        shapes = weights.shape, covariance.shape
        sound = np.isfinite(weights).all() and np.isfinite(covariance).all()
        if shapes != ((_FEATURES,), (_FEATURES, _FEATURES)) or not sound:
            raise ValueError("not the line of a step's seconds")
        if np.linalg.eigvalsh(covariance).min() < 0 or weights[0] <= 0:
            raise ValueError("not a covariance")
        # What the machine was like then is a beginning, not a fact.
        self.weights, self.covariance = weights, covariance * 4
        self._bound()
        self._drafted = True


def _describe(work: Work) -> np.ndarray:
    """A fixed part, tokens, of drafting a fixed part and the rows, a fixed part of verifying.

    With one batch all the time its tokens cannot be told from the fixed part. Those of prompts can,
    so they count as the same.
    """
    rows = work.sequences if work.rows is None else work.rows
    tokens = work.sequences + work.verified + PROMPT_TOKEN * work.prompt
    drafts = float(work.width > 0)
    verifying = float(work.verified > 0) if work.verifying is None else work.verifying
    return np.array((1.0, tokens, drafts, rows * (work.width + 1) * drafts, verifying))
