"""Which draft length to serve with, what to measure before, and where drafts stop paying.

vLLM can change the draft length with the batch (`num_speculative_tokens_per_batch_size`), but not
for free: on one H100 a schedule that never drafted took 6.6 % more time than no speculation at
concurrency 2 and 21.6 % more at 189 (vllm#49548). Runner V2 drafts the longest draft whatever is
scheduled, V1 drafts even for 0. So a schedule only shortens, above the load that was tuned for,
where it wins more than that; it never ends at 0, and where plain is faster, a plain engine is.
"""

from collections.abc import Iterator
from itertools import groupby
from math import log

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.tuning.goal import Goal, Limit
from slipstream.tuning.speed_model import Prediction, SpeedModel

TAXES = ((2, 0.066), (189, 0.216))
SAME = 0.01


class ScheduledLength(Record):
    """A draft length for a range of batches; `gain` is the least it wins there, without the tax."""

    first: int
    last: int
    draft_length: int
    gain: float


class SpeedChoice(Record):
    """The draft length for a load, with its reasons.

    `slow_seconds_per_token` is what the goal's limit is about, upper end of its error.
    `to_confirm` are draft lengths to measure at this concurrency. `schedule` is a candidate: no
    ranges if none is worth its tax. Above `overflow_above` a plain engine is faster.
    """

    draft_length: int
    concurrency: int
    prediction: Prediction
    meets_goal: bool = True
    slow_seconds_per_token: float | None = None
    reasons: tuple[str, ...]
    to_confirm: tuple[int, ...]
    schedule: tuple[ScheduledLength, ...] = ()
    overflow_above: int | None = None


def choose(model: SpeedModel, goal: Goal, concurrency: int) -> SpeedChoice:
    """Choose for a steady load; throughput and a limit may end at a lower concurrency."""
    best = _find_best(model, goal, concurrency)
    if best is None:
        raise InvalidInputError(
            f"concurrency {concurrency} is far beyond the loads that were measured",
            hint=f"slipstream tune TARGET --concurrency {concurrency}",
        )
    return settle(model, goal, best)


def settle(model: SpeedModel, goal: Goal, best: Prediction) -> SpeedChoice:
    """Return the complete choice for this draft length at this load."""
    limit = goal.limit
    slow = None if limit is None else _find_slow(model, limit, best)
    return SpeedChoice(
        draft_length=best.draft_length,
        concurrency=best.concurrency,
        prediction=best,
        meets_goal=limit is None or slow is None or slow <= limit.seconds,
        slow_seconds_per_token=slow,
        reasons=(*_explain(model, best), *_explain_limit(model, limit, slow)),
        to_confirm=_list_neighbours(model, best),
        schedule=_make_schedule(model, best),
        overflow_above=_find_overflow(model, best),
    )


def _find_slow(model: SpeedModel, limit: Limit, one: Prediction) -> float:
    """Return the time per token that the limit's share does not exceed, upper end of its error."""
    slow = model.predict_slow(one.draft_length, one.concurrency, limit.share)
    return slow * (1 + one.error)


def _find_best(model: SpeedModel, goal: Goal, concurrency: int) -> Prediction | None:
    """Return the fastest length; of a limit at the largest load that keeps it, or nearest to it."""
    if (limit := goal.limit) is not None:
        for load in range(concurrency, 0, -1):
            near = _list_near(model, load)
            if kept := [one for one in near if _find_slow(model, limit, one) <= limit.seconds]:
                return _find_fastest(kept)
        near = _list_near(model, 1)
        return min(near, key=lambda one: _find_slow(model, limit, one), default=None)
    if goal.name == "throughput":
        loads = (_find_fastest(_list_near(model, load)) for load in range(1, concurrency + 1))
        return max(filter(None, loads), key=lambda one: one.tokens_per_second, default=None)
    return _find_fastest(_list_near(model, concurrency))


def _list_near(model: SpeedModel, concurrency: int) -> list[Prediction]:
    predictions = (model.predict(length, concurrency) for length in model.lengths)
    return [prediction for prediction in predictions if not prediction.far]


def _find_fastest(predictions: list[Prediction]) -> Prediction | None:
    return min(predictions, key=lambda one: one.seconds_per_token, default=None)


def _list_neighbours(model: SpeedModel, best: Prediction) -> tuple[int, ...]:
    """List the choice, a drafting length on either side, and plain if it may be as fast."""
    near = {one.draft_length: one for one in _list_near(model, best.concurrency)}
    drafting = _find_fastest([one for one in near.values() if one.draft_length])
    if drafting is None:
        return (best.draft_length,)
    middle = drafting.draft_length
    step = max(1, middle // 4)
    lengths = {best.draft_length, middle - step, middle, middle + step} & near.keys() - {0}
    if plain := near.get(0):
        ratio = plain.seconds_per_token / drafting.seconds_per_token
        if abs(log(ratio)) <= plain.error + drafting.error:
            lengths.add(0)
    return tuple(sorted(lengths | {best.draft_length}))


def _make_schedule(model: SpeedModel, best: Prediction) -> tuple[ScheduledLength, ...]:
    """Return shorter drafts for batches above the load, if they win more than a schedule costs."""
    chosen = length = best.draft_length
    if not chosen:
        return ()
    gains = dict.fromkeys(range(1, best.concurrency + 1), (chosen, 0.0))
    for batch in range(best.concurrency + 1, model.max_sequences + 1):
        near = {one.draft_length: one for one in _list_near(model, batch)}
        if chosen not in near:
            break
        times = {short: near[short].seconds_per_token for short in near if 1 <= short <= chosen}
        fastest, tax = min(times, key=times.__getitem__), find_tax(batch)
        if times[chosen] / times[length] - 1 <= tax or times[length] > (1 + SAME) * times[fastest]:
            length = fastest if times[chosen] / times[fastest] - 1 > tax else chosen
        gains[batch] = length, times[chosen] / times[length] - 1
    ranges = [
        (drafted, [(batch, gain) for batch, (_, gain) in group])
        for drafted, group in groupby(gains.items(), key=lambda item: item[1][0])
    ]
    if len(ranges) == 1:
        return ()
    return tuple(
        ScheduledLength(
            first=members[0][0],
            last=members[-1][0],
            draft_length=drafted,
            gain=min(gain for _, gain in members),
        )
        for drafted, members in ranges
    )


def find_tax(batch: int) -> float:
    """Return what a schedule was seen to cost, on a line over the logarithm of the batch."""
    (low, least), (high, most) = TAXES
    place = log(batch / low) / log(high / low)
    return least + (most - least) * min(max(place, 0.0), 1.0)


def _find_overflow(model: SpeedModel, best: Prediction) -> int | None:
    """Return the last concurrency at which these drafts are not slower than none."""
    if not best.draft_length:
        return None
    for load in range(best.concurrency + 1, model.max_sequences + 1):
        drafting, plain = (model.predict(length, load) for length in (best.draft_length, 0))
        if drafting.far or plain.far:
            return None
        if plain.seconds_per_token < drafting.seconds_per_token:
            return load - 1
    return None


def _explain(model: SpeedModel, best: Prediction) -> Iterator[str]:
    near = _list_near(model, best.concurrency)
    yield (
        f"{best.tokens_per_step:.2f} tokens in a step of {1000 * best.seconds_per_step:.1f} ms: "
        f"{1000 * best.seconds_per_token:.1f} ms per token at concurrency {best.concurrency}, "
        f"within {best.error:.0%}"
    )
    others = [one for one in near if one.draft_length not in (0, best.draft_length)]
    if second := _find_fastest(others):
        longer = second.seconds_per_token / best.seconds_per_token - 1
        more = "longer" if longer >= 0 else "less"
        yield f"{second.draft_length} drafted tokens would take {abs(longer):.1%} {more}"
    plain = next((one for one in near if one.draft_length == 0), None)
    if plain and best.draft_length:
        gain = plain.seconds_per_token / best.seconds_per_token
        yield f"no drafts would take {gain:.2f} times as long"
    far = sorted(set(model.lengths) - {one.draft_length for one in near})
    if far:
        yield f"drafts of {far[0]} and more were left out: no step of their size was measured"


def _explain_limit(model: SpeedModel, limit: Limit | None, slow: float | None) -> Iterator[str]:
    if limit is None or slow is None:
        return
    yield f"{limit.share:.1%} of requests take at most {1000 * slow:.1f} ms per token, with error"
    fewest = min(len(one.requests) for one in model.acceptance)
    if fewest * (1 - limit.share) < 1:
        yield f"{fewest} requests of a kind are few to estimate the slowest {1 - limit.share:.1%}"
