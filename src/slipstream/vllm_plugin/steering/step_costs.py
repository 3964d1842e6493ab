"""The seconds of a step, as one line over all batches, learnt from every step.

A step reads prompts, verifies tokens and drafts the next ones, in any mixture, and all of them
teach the same line. `pace` follows what slows every step alike, such as a longer context or a
busy machine.
"""

from typing import Any, NamedTuple

import numpy as np

# A stall of the machine says nothing about a step.
MOST_OVER = 1.6
FORGETTING = 0.998
# The usual error of a step's time, relative to it.
NOISE = 0.04
PACE_SHARE = 0.05
# Before so many steps the line moves too much for a pace beside it.
PACED_STEPS = 30
_FEATURES = 5
_UNKNOWN = 1e6


class Work(NamedTuple):
    """What a step does: sequences that generate, prompt and draft tokens, the width drafted."""

    sequences: float
    prompt: float = 0.0
    verified: float = 0.0
    width: float = 0.0
    # Sequences that a draft is made for: those that only read their prompt are among them.
    rows: float | None = None


class StepCosts:
    """Recursive least squares of the relative error; the latest steps count most."""

    def __init__(self) -> None:
        self.steps = 0
        self.pace = 1.0
        self.weights = np.zeros(_FEATURES)
        self.covariance = np.eye(_FEATURES) * _UNKNOWN

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from one step."""
        row = _describe(work)
        expected = float(row @ self.weights)
        if self.steps >= PACED_STEPS and expected > 0:
            seconds = min(seconds, MOST_OVER * self.pace * expected)
            self.pace *= 1 + PACE_SHARE * (seconds / (self.pace * expected) - 1)
        self.steps += 1
        usual = seconds / self.pace
        row /= usual
        gain = self.covariance @ row
        scale = FORGETTING + float(row @ gain)
        self.weights += gain * ((1 - float(row @ self.weights)) / scale)
        self.covariance = (self.covariance - np.outer(gain, gain) / scale) / FORGETTING
        np.minimum(self.covariance, _UNKNOWN, out=self.covariance)

    def expect(self, work: Work) -> float:
        """Return the seconds that such a step takes now; nothing that it does takes less than 0."""
        return max(1e-6, self.pace * float(_describe(work) @ np.maximum(self.weights, 0)))

    def doubt(self, work: Work) -> float:
        """Return the standard error of what is expected, in seconds."""
        row = _describe(work)
        return self.pace * NOISE * float(np.sqrt(max(0.0, row @ self.covariance @ row)))

    @property
    def per_token(self) -> float:
        """Seconds that one more verified token takes."""
        return self.pace * max(0.0, float(self.weights[2]))

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
        self.weights, self.covariance = weights, np.minimum(covariance * 4, _UNKNOWN)


def _describe(work: Work) -> np.ndarray:
    """A fixed part, prompt tokens, verified tokens, and of drafting a fixed part and the rows."""
    rows = work.sequences if work.rows is None else work.rows
    drafts = float(work.width > 0)
    drafted = rows * (work.width + 1) * drafts
    return np.array((1.0, work.prompt, work.sequences + work.verified, drafts, drafted))
