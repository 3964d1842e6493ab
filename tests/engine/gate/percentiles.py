"""How slow the slowest are."""

from collections.abc import Sequence

from tests.engine.gate.neighbour import Sample


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def describe(samples: Sequence[Sample]) -> str:
    """Say in a line what a caller felt."""
    seconds = [one.seconds * 1000 for one in samples]
    return (
        f"{len(seconds)} answers, median {percentile(seconds, 0.5):.0f} ms,"
        f" p99 {percentile(seconds, 0.99):.0f} ms, longest {max(seconds):.0f} ms"
    )


def p99(samples: Sequence[Sample]) -> float:
    """Give the seconds that one in a hundred answers exceeds."""
    return percentile([one.seconds for one in samples], 0.99)
