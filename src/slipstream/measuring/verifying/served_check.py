"""`ServedCheck`: a short certificate of a server that runs, without a second engine.

The server writes greedy answers, with drafts, and then scores them by prefill, which drafts
nothing. Without a plain arm to compare with, only a token that is less likely than the best by
more than rounding ever explains is a fault: this finds a broken engine, drafter or kernel, and a
full certificate (`slipstream verify PLAN`) finds more.
"""

from collections.abc import Callable
from typing import Literal

from slipstream.measuring.client.completions import ask, ask_all
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import EngineCounts, read_engine_counts
from slipstream.measuring.verifying.certificate import Regret
from slipstream.measuring.verifying.regret import LARGEST_TIE, key_of, score_all, sum_up
from slipstream.measuring.verifying.verification import split_requests
from slipstream.measuring.workloads import Workload
from slipstream.records import Record

# Some at once, as they are asked when others ask, too.
CONCURRENCY = 4


class ServedCheck(Record):
    """Whether a server's own text is its target's, and what that rests on."""

    schema_version: Literal[1] = 1
    passed: bool
    sentence: str
    run: str
    workload: str
    max_tokens: int
    gap: float = LARGEST_TIE
    regret: Regret
    counts: EngineCounts

    @property
    def is_undrafted(self) -> bool:
        """Return whether sound text was written without drafts, as a controller may decide."""
        return bool(self.regret.tokens) and not self.regret.faults and self.counts.drafts == 0


def check_served(
    endpoint: Endpoint,
    workload: Workload,
    *,
    run: str,
    drafted: bool,
    max_tokens: int,
    progress: Callable[[str], None],
) -> ServedCheck:
    """Ask a server, have it score its answers, and draw the conclusion."""
    requests, _ = split_requests(workload, None)
    before = read_engine_counts(endpoint)
    answers = ask_all(endpoint, requests, ask, concurrency=CONCURRENCY)
    counts = read_engine_counts(endpoint).since(before)
    progress(f"{len(answers)} answers; they are scored by prefill")
    profiles = score_all(endpoint, answers)
    regret = sum_up("drafted", [profiles[key_of(answer)] for answer in answers], LARGEST_TIE)
    passed, sentence = conclude(regret, counts, drafted=drafted)
    return ServedCheck(
        passed=passed,
        sentence=sentence,
        run=run,
        workload=workload.name,
        max_tokens=max_tokens,
        regret=regret,
        counts=counts,
    )


def conclude(regret: Regret, counts: EngineCounts, *, drafted: bool) -> tuple[bool, str]:
    if not regret.tokens:
        return False, "Cannot tell: the server generated no text."
    if regret.faults:
        return False, (
            f"{regret.faults:,} of {regret.tokens:,} tokens are not the target's own: they are "
            f"less likely than its best by up to {regret.worst:.2f}."
        )
    if drafted and not counts.accepted:
        fact = "nothing was drafted" if counts.drafts == 0 else "no draft was accepted"
        return False, f"Cannot tell: {fact}, so nothing was tested."
    tested = f"; {counts.accepted:,} draft tokens were accepted" if drafted else ""
    return True, (
        f"Passed: each of {regret.tokens:,} tokens is the target's own choice or at most "
        f"{regret.worst:.2f} below it in log-probability{tested}."
    )
