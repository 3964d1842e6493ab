"""`Side`: the figures of one arm, start by start; a single server is one side."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from slipstream.measuring.bench import BenchCell, BenchReport
from slipstream.measuring.comparing.blocks import Arm
from slipstream.measuring.comparing.comparison import Arena, Comparison
from slipstream.measuring.comparing.design import LETTERS


@dataclass(frozen=True, slots=True)
class Side:
    """One arm with the cells of each of its starts."""

    arm: Arm
    name: str
    starts: Sequence[Sequence[BenchCell]]

    @property
    def drafts(self) -> bool:
        """Return whether any draft was counted."""
        return any(cell.tokens_per_step is not None for start in self.starts for cell in start)

    def find(self, kind: str | None, concurrency: int | None = None) -> list[BenchCell]:
        """Return the cells of a kind at a concurrency, of every start; None is any."""
        return [
            cell
            for start in self.starts
            for cell in start
            if kind in (None, cell.kind) and concurrency in (None, cell.concurrency)
        ]

    def average(
        self,
        read: Callable[[BenchCell], float | None],
        kind: str | None,
        concurrency: int | None = None,
    ) -> float | None:
        """Return the mean of a kind at a concurrency."""
        return find_mean(
            [value for cell in self.find(kind, concurrency) if (value := read(cell)) is not None]
        )


def find_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean: the ratio of two is the mean of the ratios."""
    if not values:
        return None
    return exp(fmean(map(log, values))) if min(values) > 0 else 0.0


def take_sides(contest: Comparison | Arena) -> tuple[Side, ...]:
    """Sort the starts by arm."""
    return tuple(
        Side(arm, compared.name, [entry.cells for entry in contest.reports if entry.arm == arm])
        for arm, compared in zip(LETTERS, contest.arms, strict=False)
    )


def take_side(report: BenchReport) -> Side:
    """Return the side of a server that was measured alone, which needs no name."""
    return Side(arm="B", name="", starts=[report.cells])


def list_kinds(sides: Iterable[Side]) -> list[str]:
    """List the kinds by name, as a verdict does."""
    return sorted({cell.kind for side in sides for cell in side.find(None)})


def list_concurrencies(sides: Iterable[Side]) -> list[int]:
    """List the concurrencies, the smallest first."""
    return sorted({cell.concurrency for side in sides for cell in side.find(None)})


def read_per_token(cell: BenchCell) -> float | None:
    """Return the median time per token in ms."""
    return None if cell.per_token is None else 1000 * cell.per_token.p50


def read_first_token(cell: BenchCell) -> float | None:
    """Return the median time to the first token in ms."""
    return None if cell.first_token is None else 1000 * cell.first_token.p50
