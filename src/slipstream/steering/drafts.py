"""`Drafts`: how many drafts were verified and what was accepted of them, whoever counted."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Self

from pydantic import NonNegativeInt

from slipstream.records import Record


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
