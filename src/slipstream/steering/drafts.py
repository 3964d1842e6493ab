"""`Drafts`: how many drafts were verified and what was accepted of them, whoever counted.

`ServedSteps` are those of a drafter beside what was copied from requests' own tokens.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Self

from pydantic import NonNegativeInt

from slipstream.records import Record

_HALVINGS = 30


class Drafts(Record):
    """Counts of drafts; `accepted[i]` counts those whose token `i + 1` was accepted."""

    drafts: NonNegativeInt = 0
    drafted: NonNegativeInt = 0
    accepted: tuple[NonNegativeInt, ...] = ()

    @property
    def tokens_per_step(self) -> float | None:
        """Return the mean acceptance length, with the target's own token; None without drafts."""
        return 1 + sum(self.accepted) / self.drafts if self.drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Return the share of drafted tokens that was accepted."""
        return sum(self.accepted) / self.drafted if self.drafted else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Return, for each position, the share of drafts whose token there was accepted."""
        return tuple(count / self.drafts for count in self.accepted) if self.drafts else ()

    @classmethod
    def total(cls, counts: Iterable["Drafts"]) -> Self:
        """Add counts up; drafts of different lengths are padded."""
        listed = list(counts)
        rows = zip_longest(*(one.accepted for one in listed), fillvalue=0)
        return cls(
            drafts=sum(one.drafts for one in listed),
            drafted=sum(one.drafted for one in listed),
            accepted=tuple(sum(row) for row in rows),
        )


class ServedSteps(Drafts):
    """The steps of requests; `drafts` are the drafter's own, `copies` those that were copied.

    `copied` counts the tokens of copies, and `copied_accepted` those that were accepted. vLLM's
    counts of drafts are the sums of both.
    """

    tokens: NonNegativeInt
    steps: NonNegativeInt
    copies: NonNegativeInt = 0
    copied: NonNegativeInt = 0
    copied_accepted: NonNegativeInt = 0

    @property
    def tokens_per_step(self) -> float | None:
        """Return the engine's yield, whether a step drafted, copied or neither."""
        return self.tokens / self.steps if self.steps else None

    @property
    def verified_per_step(self) -> float:
        """Return how many tokens a step verified, drafted or copied."""
        return (self.drafted + self.copied) / self.steps if self.steps else 0.0

    @property
    def copied_share(self) -> float | None:
        """Return the share of tokens that were copied."""
        return self.copied_accepted / self.tokens if self.tokens else None


def find_variance(by_position: Sequence[float]) -> float:
    """Return the variance of a step's tokens; `by_position` is the share accepted up to each."""
    squares = sum((2 * place + 1) * share for place, share in enumerate(by_position))
    return max(0.0, squares - sum(by_position) ** 2)


def solve_acceptance(accepted: float, length: float) -> float:
    """Return how often a token is accepted after an accepted one.

    Drafts of `length` tokens then have so many accepted in the mean, whatever their length. By
    bisection: a supervisor does this for each request, and has no other use for scipy.
    """
    low, high = 0.0, 1.0
    whole = int(length)
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        expected, reached = 0.0, 1.0
        for _ in range(whole):
            reached *= rate
            expected += reached
        expected += (length - whole) * reached * rate
        low, high = (rate, high) if expected < accepted else (low, rate)
    return (low + high) / 2
