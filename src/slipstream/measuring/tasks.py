"""Measured tasks: their wall time, their turns and the outcome of their tool calls.

A task's turns are samples in a row; its wall time is from the first request to the last token.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from slipstream.measuring.client.sample import CallOutcome, Sample
from slipstream.records import Record
from slipstream.steering.percentiles import Percentiles, rank


class TurnFigures(Record):
    """One turn of a kind's tasks; means over the tasks, and percentiles of the first token.

    `cached_share` is the share of the prompt that the server's prefix cache had, None if the server
    does not report it by request.
    """

    turn: int
    prompt_tokens: float
    output_tokens: float
    first_token: Percentiles | None
    cached_share: float | None


class TaskFigures(Record):
    """A load of tasks; `calls` counts the tool calls that were asked for by what became of them."""

    tasks: int
    failed: int
    seconds: Percentiles | None
    cached_share: float | None
    calls: dict[CallOutcome, int]
    turns: tuple[TurnFigures, ...]


class TaskRun(NamedTuple):
    """One run of a task; one whose last turn failed is not timed."""

    name: str
    samples: tuple[Sample, ...]

    @property
    def failed(self) -> bool:
        return self.samples[-1].error is not None

    @property
    def seconds(self) -> float:
        first, last = self.samples[0], self.samples[-1]
        return last.began_at + last.seconds - first.began_at

    @property
    def output_tokens(self) -> int:
        return sum(sample.output_tokens for sample in self.samples)


def split_tasks(samples: Sequence[Sample]) -> list[TaskRun]:
    """Split the samples of a load into runs of tasks; each begins with turn 1."""
    runs: list[list[Sample]] = []
    for sample in samples:
        if sample.turn == 1 or not runs:
            runs.append([])
        runs[-1].append(sample)
    return [TaskRun(run[0].task or run[0].prompt_id, tuple(run)) for run in runs]


def describe_tasks(samples: Sequence[Sample]) -> TaskFigures | None:
    """Return the figures of a load of tasks, None if it was one of single requests."""
    if samples[0].task is None:
        return None
    runs = split_tasks(samples)
    good = [sample for sample in samples if sample.error is None]
    return TaskFigures(
        tasks=len(runs),
        failed=sum(run.failed for run in runs),
        seconds=rank([run.seconds for run in runs if not run.failed]),
        cached_share=_find_cached_share(good),
        calls=dict(Counter(sample.call for sample in good if sample.call is not None)),
        turns=tuple(_describe_turns(good)),
    )


def _describe_turns(samples: Sequence[Sample]) -> list[TurnFigures]:
    turns: dict[int, list[Sample]] = {}
    for sample in samples:
        turns.setdefault(sample.turn or 0, []).append(sample)
    return [
        TurnFigures(
            turn=turn,
            prompt_tokens=fmean(sample.prompt_tokens for sample in own),
            output_tokens=fmean(sample.output_tokens for sample in own),
            first_token=rank([sample.first_token_seconds for sample in own]),
            cached_share=_find_cached_share(own),
        )
        for turn, own in sorted(turns.items())
    ]


def _find_cached_share(samples: Sequence[Sample]) -> float | None:
    known = [one for one in samples if one.cached_tokens is not None and one.prompt_tokens]
    if not known:
        return None
    return sum(one.cached_tokens or 0 for one in known) / sum(one.prompt_tokens for one in known)
