"""A run of another plan compared with the run before it on the same machine, from their ledgers.

The test is a swap's own (`steering/swap_test.py`), on tokens per second after the first token.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Literal

from slipstream.errors import InvalidInputError
from slipstream.fleet.record import Name, find_folder, is_of_fleet
from slipstream.records import Record
from slipstream.serving.run import RunFolder, find_runs_root, list_runs
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerLine, read_ledger
from slipstream.steering.swap_test import SwapTest, SwapVerdict

MOST_BEFORE = 1000
LEAST_TOKENS = 8


class EvaluateRun(Record):
    """Asks how the newest run of a fleet's plan does against the one before it."""

    fleet: Name


class RunVerdict(Record):
    """What the requests of both runs show so far; means are of the old and the new run."""

    schema_version: Literal[1] = 1
    run: str
    seconds: float
    verdict: SwapVerdict | None
    requests: int
    tokens_per_second: tuple[float, float] | None

    @property
    def message(self) -> str:
        found = {"as-good": "as good as before", "worse": "worse than before", None: "undecided"}
        figures = "no requests could be compared"
        if self.tokens_per_second is not None:
            old, new = self.tokens_per_second
            figures = f"{new:.1f} tokens per second, {old:.1f} before, {self.requests} requests"
        return f"{found[self.verdict]}: {figures}"


def evaluate_run(request: EvaluateRun, environment: Mapping[str, str], now: datetime) -> RunVerdict:
    """Compare the requests of the newest run with those of the last one that had any."""
    folder = find_folder(request.fleet)
    runs = [
        (place, run)
        for place, run in list_runs(find_runs_root(environment))
        if is_of_fleet(folder, run.terms.plan_file)
    ]
    if not runs:
        raise InvalidInputError(
            f"no run of the fleet {request.fleet} is here", hint="slipstream fleet status"
        )
    newest = runs[0][1]
    earlier = (list(_read_lines(one[0]))[-MOST_BEFORE:] for one in runs[1:])
    before = next(filter(None, earlier), [])
    # Prefixes in the cache are part of what a plan is worth.
    test = SwapTest(before, measure=measure_speed, most_cached_share=1.0)
    for line in _read_lines(runs[0][0]):
        test.add(line)
    return RunVerdict(
        run=newest.id,
        seconds=(now - newest.began_at).total_seconds(),
        verdict=test.verdict,
        requests=test.requests,
        tokens_per_second=test.means,
    )


def measure_speed(line: LedgerLine) -> float | None:
    """Return the tokens per second after the first, None of an answer that is too short."""
    if line.first_seconds is None or line.tokens < LEAST_TOKENS:
        return None
    seconds = line.seconds - line.first_seconds
    return (line.tokens - 1) / seconds if seconds > 0 else None


def _read_lines(folder: RunFolder) -> Iterator[LedgerLine]:
    for line in read_ledger(folder.list_ledgers()):
        if line.key != SUPERVISOR_KEY:
            yield line
