"""The seconds of a step, as one line over all batches, learnt from every step.

A step reads prompts, verifies tokens and drafts the next ones, in any mixture, and all of them
teach the same line. It follows the latest few hundred steps, so a longer context or a busy machine
is in it; a stall counts as no more than a slow step. What these steps cannot tell apart, as a
batch that is always the same, stays near what is assumed.
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np

FORGETTING = 0.998
# An engine's first steps set things up.
WARM_UP_STEPS = 3
# The usual error of a step's time, relative to it, and by how many of them one may be too slow.
# None is too fast by chance.
NOISE = 0.08
MOST_ERRORS = 3.0
# Assumed, and within which bounds: as shares of the fastest step, of rows as shares of a token.
ASSUMED = np.array((0.8, 1 / 64, 0.2, 0.3, 0.05))
WITHIN = np.array((1.0, 1 / 16, 0.2, 0.3, 0.1))
LEAST_TOKEN = 1 / 32
# A token of a prompt as a share of one that is sampled, for which logits are computed.
PROMPT_TOKEN = 0.8
# What the machine was like for an earlier engine is a beginning, not a fact.
RECALLED = 0.25
_TOKEN, _ROW, _VERIFYING = 1, 3, 4


class StepWork(NamedTuple):
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
    """Least squares of the relative error; the latest steps count most, the assumption always."""

    def __init__(self) -> None:
        self.steps = 0
        self.weights = np.zeros(len(ASSUMED))
        self.covariance = np.zeros((len(ASSUMED),) * 2)
        self._information = np.zeros((len(ASSUMED),) * 2)
        self._moment = np.zeros(len(ASSUMED))
        self._fastest = inf

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from one step."""
        self.steps += 1
        if self.steps <= WARM_UP_STEPS:
            return
        row = _describe(work) / seconds
        share = 1.0
        if self._fastest < inf:
            most = MOST_ERRORS * NOISE * (1 + float(row @ self.covariance @ row)) ** 0.5
            share = min(1.0, float(row @ self.weights) + most)
        self._fastest = min(self._fastest, seconds)
        self._information = FORGETTING * self._information + np.outer(row, row)
        self._moment = FORGETTING * self._moment + share * row
        self._solve()

    def _solve(self) -> None:
        """Find the line. No part of it takes less than nothing: then the others take less."""
        scale = np.full(len(ASSUMED), self._fastest)
        scale[_ROW] = max(self.weights[_TOKEN], LEAST_TOKEN * self._fastest)
        assumed = (NOISE / (WITHIN * scale)) ** 2
        covariance = np.linalg.inv(self._information + np.diag(assumed))
        weights = covariance @ (self._moment + assumed * ASSUMED * scale)
        for place in np.flatnonzero(weights < 0):
            missing = min(0.0, weights[place]) / covariance[place, place]
            weights -= missing * covariance[:, place]
        self.weights, self.covariance = np.maximum(weights, 0.0), covariance

    def expect(self, work: StepWork) -> float:
        """Return the seconds that such a step takes now; nothing that it does takes less than 0."""
        return max(1e-6, float(_describe(work) @ self.weights))

    def doubt(self, work: StepWork) -> float:
        """Return the standard error of what is expected, in seconds."""
        if not self._fastest < inf:
            return inf
        row = _describe(work)
        return NOISE * float(np.sqrt(max(0.0, row @ self.covariance @ row)))

    @property
    def per_token(self) -> float:
        """Seconds that one more verified token takes."""
        return float(self.weights[_TOKEN])

    @property
    def per_verification(self) -> float:
        """Seconds that a step takes longer if it verifies anything."""
        return float(self.weights[_VERIFYING])

    def dump(self) -> dict[str, Any]:
        return {
            "information": self._information.tolist(),
            "moment": self._moment.tolist(),
            "fastest": self._fastest,
        }

    def load(self, found: Any) -> None:
        """Begin with what an earlier engine has learnt, or raise an error."""
        information = np.asarray(found["information"], float)
        moment, fastest = np.asarray(found["moment"], float), float(found["fastest"])
        shapes = information.shape, moment.shape
        if shapes != (self._information.shape, self._moment.shape) or not 0 < fastest < inf:
            raise ValueError("not the line of a step's seconds")
        if not (np.isfinite(information).all() and np.isfinite(moment).all()):
            raise ValueError("not the line of a step's seconds")
        if np.linalg.eigvalsh(information).min() < -1e-6 * np.abs(information).max():
            raise ValueError("not measured step costs")
        self._information, self._moment = RECALLED * information, RECALLED * moment
        self._fastest = fastest
        self._solve()


def _describe(work: StepWork) -> np.ndarray:
    """A fixed part, tokens, of drafting a fixed part and the rows, a fixed part of verifying.

    With one batch all the time its tokens cannot be told from the fixed part. Those of prompts can,
    so they count as the same.
    """
    rows = work.sequences if work.rows is None else work.rows
    tokens = work.sequences + work.verified + PROMPT_TOKEN * work.prompt
    drafts = float(work.width > 0)
    verifying = float(work.verified > 0) if work.verifying is None else work.verifying
    return np.array((1.0, tokens, drafts, rows * (work.width + 1) * drafts, verifying))
