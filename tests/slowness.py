"""How much slower a machine is now than the one for which limits in seconds were set."""

import time
from statistics import median

# On a Xeon of 2.5 GHz with nothing beside it, Python 3.11.
REFERENCE_SECONDS = 0.05
ROUNDS = 1_000_000


def measure_slowness() -> float:
    """Return by how much fixed work takes more processor time than there, at least 1.

    A shared machine can be throttled to a quarter, which is no fault of what is tested.
    """
    return max(1.0, median(_work() for _ in range(5)) / REFERENCE_SECONDS)


def _work() -> float:
    began, total = time.thread_time(), 0
    for number in range(ROUNDS):
        total += number
    return time.thread_time() - began
