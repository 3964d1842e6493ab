"""The figures that only tasks have: wall time, turns, cached tokens, tool calls."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean

from slipstream.measuring.bench import BenchCell
from slipstream.measuring.tasks import TurnFigures
from slipstream.reporting.pages.report import Row, Section, Table, show
from slipstream.reporting.pages.sides import Side, find_mean, list_concurrencies, list_kinds
from slipstream.units import UNKNOWN


def has_tasks(sides: Sequence[Side]) -> bool:
    """Return whether tasks were measured."""
    return any(cell.tasks is not None for side in sides for cell in side.find(None))


def read_task_seconds(cell: BenchCell) -> float | None:
    """Return the median wall time of a task."""
    ranks = cell.tasks.seconds if cell.tasks else None
    return None if ranks is None else ranks.p50


def show_share(share: float | None) -> str:
    """Write a share in per cent."""
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def show_cached(cells: Sequence[BenchCell]) -> str:
    """Write the share of the prompts that the cache had: by request, or as the engine counts it."""
    shares = [_find_cached_share(cell) for cell in cells]
    told = [share for share in shares if share is not None]
    return show_share(fmean(told) if told else None)


def show_calls(cells: Sequence[BenchCell]) -> str:
    """Write how many of the tool calls could be parsed, and what became of the others."""
    counts: Counter[str] = Counter()
    for cell in cells:
        for outcome, count in cell.tasks.calls.items() if cell.tasks else ():
            counts[outcome] += count
    if not counts:
        return "not asked for"
    others = [f"{counts[name]} {name}" for name in sorted(counts) if name != "parsed"]
    return ", ".join([f"{counts['parsed']} of {counts.total()} parsed", *others])


def describe_turns(sides: Sequence[Side]) -> list[Section]:
    """Return the first tokens and cached shares by turn as a table, for each side."""
    if not has_tasks(sides):
        return []
    names = [f"{side.arm} " if len(sides) > 1 else "" for side in sides]
    header = (
        *("kind", "at once", "turn", "prompt tokens"),
        *(f"{name}first token, ms" for name in names),
        *(f"{name}cached" for name in names),
    )
    rows = [
        _describe_turn(sides, kind, concurrency, turn)
        for kind in list_kinds(sides)
        for concurrency in list_concurrencies(sides)
        for turn in list_turns(sides, kind)
    ]
    return [Section("time to the first token by turn, the median", Table(header, rows))]


def list_turns(sides: Sequence[Side], kind: str) -> list[int]:
    """List the turns of a kind's tasks."""
    cells = [cell for side in sides for cell in side.find(kind)]
    return sorted({one.turn for cell in cells if cell.tasks for one in cell.tasks.turns})


def read_turn(
    side: Side,
    kind: str,
    concurrency: int,
    turn: int,
    read: Callable[[TurnFigures], float | None],
) -> list[float]:
    """Return a figure of a turn in each start that has it."""
    found = [
        read(one)
        for cell in side.find(kind, concurrency)
        if cell.tasks
        for one in cell.tasks.turns
        if one.turn == turn
    ]
    return [value for value in found if value is not None]


def read_first_token_ms(turn: TurnFigures) -> float | None:
    """Return the median time to a turn's first token in ms."""
    return None if turn.first_token is None else 1000 * turn.first_token.p50


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


def _find_cached_share(cell: BenchCell) -> float | None:
    told = cell.tasks.cached_share if cell.tasks else None
    return cell.cache_hit_share if told is None else told
