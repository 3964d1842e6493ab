"""The expected time of a request from its features: a linear model, fitted online.

Load, draft length and prompts change all the time, and with them every time; a drift is what they
do not explain. Errors count relative to the time, and nothing is forgotten: a slower engine must
stay one.
"""

PILOT_REQUESTS = 100
# Times of what is expected: a stall says nothing about the others.
MOST_OFF = 4.0
_UNKNOWN = 1e6


class ExpectedTime:
    """Recursive least squares over a fixed number of features, of which the first is 1."""

    def __init__(self, features: int) -> None:
        self._count = 0
        self._least = float("inf")
        self._weights = [0.0] * features
        self._covariance = [
            [_UNKNOWN if row == column else 0.0 for column in range(features)]
            for row in range(features)
        ]

    def predict(self, features: tuple[float, ...]) -> float | None:
        """Return the time to expect, None during the pilot."""
        return self._predict(features) if self._count >= PILOT_REQUESTS else None

    def learn(self, features: tuple[float, ...], seconds: float) -> None:
        """Update the model with a request's time."""
        if self._count >= PILOT_REQUESTS:
            expected = self._predict(features)
            seconds = min(MOST_OFF * expected, max(expected / MOST_OFF, seconds))
        if not seconds > 0:
            return
        self._count += 1
        self._least = min(self._least, seconds)
        row = [feature / seconds for feature in features]
        covariance = self._covariance
        gain = [sum(map(float.__mul__, line, row)) for line in covariance]
        scale = 1 + sum(map(float.__mul__, row, gain))
        error = 1 - sum(map(float.__mul__, self._weights, row))
        for place, one in enumerate(gain):
            self._weights[place] += one / scale * error
            line = covariance[place]
            for column, other in enumerate(gain):
                line[column] -= one * other / scale

    def _predict(self, features: tuple[float, ...]) -> float:
        """Return the model's time, kept within reason where it has seen nothing like it."""
        return max(self._least / 2, sum(map(float.__mul__, self._weights, features)))
