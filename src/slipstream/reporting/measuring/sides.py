"""`Side`: the figures of one arm, start by start; a single server is one side.

And the figures that only tasks have: wall time, turns, cached tokens, tool calls.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from slipstream.measuring.bench import BenchCell, BenchReport
from slipstream.measuring.comparing.blocks import Arm
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.comparing.design import LETTERS
from slipstream.measuring.tasks import TurnFigures
from slipstream.reporting.report import Row, Section, Table, find_mean, show
from slipstream.steering.percentiles import Percentiles
from slipstream.units import UNKNOWN

Read = Callable[[BenchCell], float | None]


@dataclass(frozen=True, slots=True)
class Side:
    """One arm with the cells of each of its starts."""

    arm: Arm
    name: str
    starts: Sequence[Sequence[BenchCell]]

    @property
    def key(self) -> tuple[str, str]:
        return self.arm, self.name

    @property
    def drafts(self) -> bool:
        return any(cell.tokens_per_step is not None for cell in self.find(None))

    def find(self, kind: str | None, concurrency: int | None = None) -> list[BenchCell]:
        """Return the cells of a kind at a concurrency, of every start; None is any."""
        return [
            cell
            for start in self.starts
            for cell in start
            if kind in (None, cell.kind) and concurrency in (None, cell.concurrency)
        ]

    def average(self, read: Read, kind: str | None, concurrency: int | None = None) -> float | None:
        return find_mean(
            [value for cell in self.find(kind, concurrency) if (value := read(cell)) is not None]
        )


def take_sides(comparison: Comparison) -> tuple[Side, ...]:
    return tuple(
        Side(arm, compared.name, [start.cells for start in comparison.starts if start.arm == arm])
        for arm, compared in zip(LETTERS, comparison.arms, strict=False)
    )


def take_side(report: BenchReport) -> Side:
    """Return the side of a server that was measured alone, which needs no name."""
    return Side(arm="B", name="", starts=[report.cells])


def list_kinds(sides: Iterable[Side]) -> list[str]:
    """List the kinds by name, as a verdict does."""
    return sorted({cell.kind for side in sides for cell in side.find(None)})


def list_concurrencies(sides: Iterable[Side]) -> list[int]:
    return sorted({cell.concurrency for side in sides for cell in side.find(None)})


def find_median_ms(ranks: Percentiles | None) -> float | None:
    return None if ranks is None else 1000 * ranks.p50


def read_per_token(cell: BenchCell) -> float | None:
    return find_median_ms(cell.per_token)


def read_first_token(cell: BenchCell) -> float | None:
    return find_median_ms(cell.first_token)


def read_tokens_per_step(cell: BenchCell) -> float | None:
    return cell.tokens_per_step


def read_task_seconds(cell: BenchCell) -> float | None:
    """Return the median wall time of a task."""
    return cell.tasks.seconds.p50 if cell.tasks and cell.tasks.seconds else None


def read_pace(cell: BenchCell) -> float | None:
    """Return tokens per second, or of tasks the median wall time."""
    return cell.tokens_per_second if cell.tasks is None else read_task_seconds(cell)


def has_tasks(sides: Sequence[Side]) -> bool:
    return any(cell.tasks is not None for side in sides for cell in side.find(None))


def show_share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def show_cached(cells: Sequence[BenchCell]) -> str:
    """Write the share of the prompts that the cache had: by request, or as the engine counts it."""
    shares = [cell.tasks.cached_share if cell.tasks else None for cell in cells]
    known = [
        share
        for cell, by_request in zip(cells, shares, strict=True)
        if (share := cell.cache_hit_share if by_request is None else by_request) is not None
    ]
    return show_share(fmean(known) if known else None)


def show_calls(cells: Sequence[BenchCell]) -> str:
    """Write how many of the tool calls could be parsed, and what became of the others."""
    counts: Counter[str] = Counter()
    for cell in cells:
        counts.update(cell.tasks.calls if cell.tasks else {})
    if not counts:
        return "not requested"
    others = [f"{counts[name]} {name}" for name in sorted(counts) if name != "parsed"]
    return ", ".join([f"{counts['parsed']} of {counts.total()} parsed", *others])


def describe_turns(sides: Sequence[Side]) -> Section:
    """Return the first tokens and cached shares of tasks by turn, for each side."""
    names = [f"{side.arm} " if len(sides) > 1 else "" for side in sides]
    header = (
        *("kind", "concurrency", "turn", "prompt tokens"),
        *(f"{name}first token, ms" for name in names),
        *(f"{name}cached" for name in names),
    )
    rows = [
        _describe_turn(sides, kind, concurrency, turn)
        for kind in list_kinds(sides)
        for concurrency in list_concurrencies(sides)
        for turn in list_turns(sides, kind)
    ]
    return Section("time to the first token by turn, the median", Table(header, rows))


def list_turns(sides: Sequence[Side], kind: str) -> list[int]:
    cells = [cell for side in sides for cell in side.find(kind)]
    return sorted({one.turn for cell in cells if cell.tasks for one in cell.tasks.turns})


def read_turn(
    side: Side, kind: str, concurrency: int, turn: int, read: Callable[[TurnFigures], float | None]
) -> list[float]:
    """Return a figure of a turn in each start that has it."""
    tasks = [cell.tasks for cell in side.find(kind, concurrency) if cell.tasks]
    found = [read(one) for own in tasks for one in own.turns if one.turn == turn]
    return [value for value in found if value is not None]


def read_first_token_ms(turn: TurnFigures) -> float | None:
    return find_median_ms(turn.first_token)


def _describe_turn(sides: Sequence[Side], kind: str, concurrency: int, turn: int) -> Row:
    def read(side: Side, what: Callable[[TurnFigures], float | None]) -> list[float]:
        return read_turn(side, kind, concurrency, turn, what)

    prompts = [tokens for side in sides for tokens in read(side, lambda one: one.prompt_tokens)]
    shares = [read(side, lambda one: one.cached_share) for side in sides]
    return (
        kind,
        str(concurrency),
        str(turn),
        show(find_mean(prompts), 0),
        *(show(find_mean(read(side, read_first_token_ms)), 0) for side in sides),
        *(show_share(fmean(own) if own else None) for own in shares),
    )
