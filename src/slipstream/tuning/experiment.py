"""Which loads of which engines to measure, when each costs minutes, and what they tell.

The draft length is a setting of the start, unless `num_speculative_tokens_per_batch_size` changes
it with the batch: then every concurrency can have its own, and one start tells all three costs of
a step. What vLLM 0.32 does with a scheduled length k:

- Runner V1 drafts k tokens, as if it had been started with k.
- Runner V2 drafts the longest and verifies k, so short drafts look slower than a start with
  their length would be.

The batch is counted with the requests that still prefill, and falls below the concurrency for the
moment between two requests. So a length holds from just above the next lower concurrency on.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from slipstream.engines.vllm import Runner
from slipstream.errors import EngineError, UsageError
from slipstream.measuring.client.sample import Sample
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.speed_model import StepPoint

TYPICAL_TOKEN = 0.01  # of a step's fixed time: fitted to the rates of AEON-7/vllm-dflash on a GB10
SHORT_SHARE = 3
APART = 8
LEAST_SIZES = 3
DRAFTING_LOADS = 5
ODD_SHARE = 0.1
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


def plan_starts(longest: int, most_concurrency: int, *, runner: Runner) -> tuple[EngineStart, ...]:
    """Choose the loads of a drafting start and of a plain one that leave the least error.

    The error is that over all draft lengths and loads.
    """
    if most_concurrency < 2:
        raise UsageError(
            "loads of one sequence do not determine the cost of a step", hint="--users 2 or more"
        )
    short = max(1, longest // SHORT_SHARE)
    powers = range((most_concurrency - 1).bit_length())
    sizes = [*(1 << power for power in powers), most_concurrency]
    scheduled = short < longest and len(sizes) >= LEAST_SIZES
    # A size has one length in a schedule: with one near the largest, short drafts are in large
    # steps, too. Nearer than this, the batch would change the length whenever an answer ends.
    between = {most_concurrency * 3 // 4} if scheduled and most_concurrency >= APART else set()
    lengths = [short, longest] if scheduled else [longest]
    cells = [(size, length) for size in sorted({*sizes, *between}) for length in lengths]
    targets = [(size, length) for size in sizes for length in range(1, longest + 1)]
    picked = _pick(cells, targets, one_length=scheduled)
    why = f"{longest} drafted tokens at every load"
    if scheduled and runner == "V1":
        why = "a draft length per concurrency, in one start"
    elif scheduled:
        why = (
            "each concurrency verifies its own length, but all draft the longest: "
            "confirm a short one before dismissing it"
        )
    drafting = EngineStart(
        draft_length=longest,
        concurrencies=tuple(size for size, _ in picked),
        schedule=tuple(_list_ranges(dict(picked))) if scheduled else (),
        because=why,
    )
    # Between its ends a plain step's time is a line.
    ends = (sizes[0], sizes[-1])
    return drafting, EngineStart(0, ends, because="the baseline without drafts")


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


def _pick(cells: Sequence[Cell], targets: Sequence[Cell], *, one_length: bool) -> list[Cell]:
    """Begin with the longest drafts at both ends, then add the load that leaves the least error.

    The largest step makes all others smaller than one that was measured, and a lone sequence is
    never drafted at another length. No load is repeated while there are others: those that lie
    apart also tell if the line is bent.
    """
    import numpy

    def describe(chosen: Sequence[Cell]) -> "numpy.typing.NDArray[numpy.float64]":
        """Return what costs count for, over a typical step's time: errors are shares."""
        rows = numpy.array([(1.0, size, size * (length + 1)) for size, length in chosen])
        return rows / (1 + TYPICAL_TOKEN * rows[:, 2:])

    wanted = describe(targets)
    information = _BEGIN * numpy.eye(3)

    def find_error(cell: Cell) -> float:
        row = describe([cell])
        covariance = numpy.linalg.inv(information + row.T @ row)
        return float(numpy.einsum("ni,ij,nj->", wanted, covariance, wanted))

    first = [max(cells), (1, max(length for _, length in cells))]
    picked: list[Cell] = []
    left = list(cells)
    for _ in range(DRAFTING_LOADS):
        best = first.pop(0) if first else min(left, key=find_error)
        information += describe([best]).T @ describe([best])
        picked.append(best)
        left = [cell for cell in left if (cell[0] != best[0] if one_length else cell != best)]
        left = left or list(dict.fromkeys(picked) if one_length else cells)
    return sorted(picked)


def _list_ranges(length_of: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    first = last = 0
    for length, group in groupby(sorted(length_of), key=length_of.__getitem__):
        first, last = last + 1, max(group)
        yield first, last, length


def read_point(samples: Sequence[Sample], *, drafts: bool) -> StepPoint:
    """Return a load's time per step, and the sequences that shared one.

    All places of a load are busy all through, but one that reads its prompt or waits does not
    decode. `drafts` says whether the engine has a drafter.
    """
    good = _list_good(samples)
    kind, concurrency = samples[0].kind, samples[0].concurrency
    steps = sum(sample.drafts if drafts else sample.output_tokens - 1 for sample in good)
    if not steps:
        raise EngineError(
            f"the load of {kind} at concurrency {concurrency} has no "
            + ("drafts in its usage" if good else "times: no request got two tokens"),
            hint="start the server with --per-request-spec-decode-metrics summary"
            if good
            else "look into the server's log",
        )
    seconds = sum(map(_decode_seconds, good))
    return StepPoint(
        kind=kind,
        concurrency=concurrency,
        sequences=1 + (concurrency - 1) * seconds / sum(sample.seconds for sample in good),
        draft_length=sum(sample.drafted for sample in good) / steps if drafts else 0.0,
        seconds_per_step=seconds / steps,
    )


def read_acceptance(
    loads: Sequence[Sequence[Sample]], lengths: Collection[int]
) -> tuple[DraftAcceptance, ...]:
    """Return the drafts of each kind at each of the engine's lengths.

    Where a schedule changed the length for more than a few drafts, a request is left out.
    """
    requests = defaultdict[tuple[str, int], list[RequestDrafts]](list)
    for samples in loads:
        load = read_point(samples, drafts=True)
        for sample in _list_good(samples):
            length = round(sample.drafted / sample.drafts) if sample.drafts else 0
            odd = abs(sample.drafted - length * sample.drafts)
            if length in lengths and odd <= max(1, ODD_SHARE * sample.drafted):
                drafts = RequestDrafts(
                    prompt_id=sample.prompt_id,
                    drafts=sample.drafts,
                    drafted=sample.drafted,
                    accepted=sample.accepted_by_position[:length],
                    pace=_decode_seconds(sample) / sample.drafts / load.seconds_per_step,
                )
                requests[sample.kind, length].append(drafts)
    return tuple(
        DraftAcceptance(kind=kind, draft_length=length, requests=tuple(rows))
        for (kind, length), rows in sorted(requests.items())
    )


def _list_good(samples: Sequence[Sample]) -> list[Sample]:
    return [one for one in samples if one.error is None and one.seconds_per_token is not None]


def _decode_seconds(sample: Sample) -> float:
    return sample.seconds - (sample.first_token_seconds or 0.0)
