"""Which loads of which engines to measure, when each start and each load costs minutes.

The draft length is a setting of the start, unless `num_speculative_tokens_per_batch_size` changes
it with the batch: then every concurrency can have its own, and one start tells all three costs of
a step. What vLLM 0.32 does with a scheduled length k:

- Runner V1 drafts k tokens, as if it had been started with k.
- Runner V2 drafts the longest and verifies k, so short drafts look slower than a start with
  their length would be.

The batch is counted with the requests that still prefill, and falls below the concurrency for the
moment between two requests. So a length holds from just above the next lower concurrency on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from slipstream.engines.vllm import Runner
from slipstream.errors import UsageError
from slipstream.tuning.least_squares import find_leverage, invert

TYPICAL_TOKEN = 0.01  # of a step's fixed time: fitted to the rates of AEON-7/vllm-dflash on a GB10
SHORT_SHARE = 3
APART = 8
LEAST_DRAFTING = 3
LEAST_PLAIN = 2
_BEGIN = 1e-3

Cell = tuple[int, int]
"""A concurrency and a draft length."""


@dataclass(frozen=True, slots=True)
class EngineStart:
    """One start: its draft length (0 is no drafter), its schedule if it has one, its loads.

    `method` is another way of drafting than the tuned plan's. Not each of its steps need have a
    draft, so only its tokens are counted.
    """

    draft_length: int
    concurrencies: tuple[int, ...]
    schedule: tuple[tuple[int, int, int], ...] = ()
    because: str = ""
    method: str | None = None


def plan_starts(
    longest: int, most_concurrency: int, *, loads: int, starts: int, runner: Runner
) -> tuple[EngineStart, ...]:
    """Choose the starts and loads that leave the least error over all draft lengths and loads."""
    if starts < 1 or loads < LEAST_DRAFTING + LEAST_PLAIN * (starts > 1) or most_concurrency < 2:
        raise UsageError(
            f"{loads} loads on {starts} starts up to concurrency {most_concurrency} "
            "do not tell what a step costs",
            hint="at least 5 loads on 2 starts, up to concurrency 2 or more",
        )
    plain = max(LEAST_PLAIN, loads // 3) if starts > 1 else 0
    short = max(1, longest // SHORT_SHARE)
    sizes = _list_sizes(most_concurrency)
    scheduled = starts < 3 and short < longest and len(sizes) >= LEAST_DRAFTING
    lengths = {short, longest} if scheduled or starts > 2 else {longest}
    # A size has one length in a schedule: with one near the largest, short drafts are in large
    # steps, too. Nearer than this, the batch would change the length whenever an answer ends.
    between = {most_concurrency * 3 // 4} if scheduled and most_concurrency >= APART else set()
    asked = sorted({*sizes, *between})
    cells = [(size, length) for size in asked for length in sorted(lengths)]
    targets = [(size, length) for size in sizes for length in range(1, longest + 1)]
    picked = _pick(cells, targets, loads - plain, one_length=scheduled)
    if scheduled:
        drafting = [_make_scheduled(picked, longest, runner)]
    else:
        drafting = [
            _make_static([size for size, its in picked if its == length], length)
            for length in sorted(lengths, reverse=True)
        ]
    rest = [_make_plain(sizes, plain)] if plain else []
    return tuple(start for start in (*drafting, *rest) if start.concurrencies)


def plan_confirmation(
    chosen: int, lengths: Sequence[int], concurrency: int, most: int, *, runner: Runner
) -> EngineStart:
    """Choose a start that serves the chosen length at its load and, on V1, its neighbours nearby.

    Runner V2 would draft the neighbours at the longest of them, which tells nothing of theirs.
    Where no drafts are best, that was served already, and the best drafts are given their chance.
    """
    drafting = sorted(set(lengths) - {0})
    if not chosen and drafting:
        middle = drafting[len(drafting) // 2]
        rival = plan_confirmation(middle, lengths, concurrency, most, runner=runner)
        return replace(rival, because=f"whether {middle} drafted tokens are slower than none")
    others = [length for length in lengths if length not in (0, chosen)] if runner == "V1" else []
    near = [size for size in range(1, most + 1) if size != concurrency]
    near.sort(key=lambda size: (abs(size - concurrency), -size))
    length_of = {concurrency: chosen, **dict(zip(near, others, strict=False))}
    return EngineStart(
        draft_length=max(length_of.values()),
        concurrencies=tuple(sorted(length_of)),
        schedule=tuple(_list_ranges(length_of)) if len(set(length_of.values())) > 1 else (),
        because=f"confirms {chosen} drafted tokens"
        + (f" beside {' and '.join(map(str, sorted(others)))}" if others else ""),
    )


def _list_sizes(most: int) -> list[int]:
    doubled = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*doubled, most]


def _pick(
    cells: Sequence[Cell], targets: Sequence[Cell], loads: int, *, one_length: bool
) -> list[Cell]:
    """Begin with the longest drafts at both ends, then add the load that leaves the least error.

    The largest step makes all others smaller than one that was measured, and a lone sequence is
    never drafted at another length. No load is repeated while there are others: those that lie
    apart also tell if the line is bent.
    """
    longest = max(length for _, length in cells)
    first = [max(cells), (1, longest)]
    picked: list[Cell] = []
    left = list(cells)
    information = [[_BEGIN * (i == j) for j in range(3)] for i in range(3)]
    rows = [_describe(target) for target in targets]
    for _ in range(loads):
        errors = {cell: _find_error(_add(information, cell), rows) for cell in left}
        best = first.pop(0) if first else min(left, key=errors.__getitem__)
        information = _add(information, best)
        picked.append(best)
        again = list(dict.fromkeys(picked)) if one_length else cells
        left = [
            cell for cell in left if (cell[0] != best[0] if one_length else cell != best)
        ] or list(again)
    return sorted(picked)


def _describe(cell: Cell) -> tuple[float, float, float]:
    """Return what a step's costs count for, over a typical step's time: errors are shares."""
    concurrency, length = cell
    tokens = concurrency * (length + 1)
    seconds = 1 + TYPICAL_TOKEN * tokens
    return 1 / seconds, concurrency / seconds, tokens / seconds


def _add(information: Sequence[Sequence[float]], cell: Cell) -> list[list[float]]:
    row = _describe(cell)
    return [[information[i][j] + row[i] * row[j] for j in range(len(row))] for i in range(len(row))]


def _find_error(information: Sequence[Sequence[float]], rows: Sequence[Sequence[float]]) -> float:
    covariance = invert(information)
    if covariance is None:
        return inf
    return sum(find_leverage(row, covariance) for row in rows)


def _make_scheduled(picked: Sequence[Cell], longest: int, runner: Runner) -> EngineStart:
    because = (
        "each concurrency has a draft length of its own, in one start"
        if runner == "V1"
        else "each concurrency verifies a length of its own, but all are drafted at the longest: "
        "confirm a short one before it is dismissed"
    )
    return EngineStart(
        draft_length=longest,
        concurrencies=tuple(size for size, _ in picked),
        schedule=tuple(_list_ranges(dict(picked))),
        because=because,
    )


def _list_ranges(length_of: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    first = last = 0
    for length, group in groupby(sorted(length_of), key=length_of.__getitem__):
        first, last = last + 1, max(group)
        yield first, last, length


def _make_static(sizes: Sequence[int], length: int) -> EngineStart:
    return EngineStart(length, tuple(sizes), because=f"{length} drafted tokens at every load")


def _make_plain(sizes: Sequence[int], loads: int) -> EngineStart:
    """Measure the ends first: between them a plain step's time is a line."""
    ends = [sizes[-1], sizes[0]]
    wanted = [*ends, sizes[len(sizes) // 2], *ends * loads][:loads]
    return EngineStart(0, tuple(sorted(wanted)), because="what drafts are held against")
