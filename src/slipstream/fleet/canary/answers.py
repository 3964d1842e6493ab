"""Answers of both arms to the same prompts, and how far their tokens are from the target's best.

Every group answers greedily, and its own engine judges the answers by prefill, where nothing is
drafted (`measuring/verifying/regret.py`). If the arms are alike, an answer that is at fault in one
of them only is as likely the canary's as the other's: an exact sign test, looked at once.
"""

import asyncio
from collections.abc import Sequence
from math import comb
from typing import Annotated, Literal

from pydantic import Field

from slipstream.fleet.canary.record import RegretEvidence
from slipstream.measuring.client.completions import ask
from slipstream.measuring.client.endpoint import (
    Endpoint,
    open_client,
    read_model,
    read_served_model,
)
from slipstream.measuring.verifying.regret import find_tolerance, judge_answer, key_of
from slipstream.measuring.verifying.verification import split_requests
from slipstream.measuring.workloads import load_workload
from slipstream.records import Record

KINDS = ("code", "dialogue", "prose", "translation")
# Eight faults of the canary alone are the least that is not chance.
ANSWERS = 24
ANSWER_TOKENS = 48
MOST_ANSWERS = 1000


class AnswerRegret(Record):
    """One answer: its tokens, and by how much the worst is less likely than the best."""

    prompt_id: Annotated[str, Field(max_length=128)]
    tokens: Annotated[int, Field(ge=0)]
    worst: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class AnswerSample(Record):
    """What a group answered to the prompts that every group is asked."""

    schema_version: Literal[1] = 1
    answers: Annotated[tuple[AnswerRegret, ...], Field(max_length=MOST_ANSWERS)]


def sample_answers(endpoint: Endpoint, number: int) -> AnswerSample:
    """Ask a server so many prompts, one after the other, and have it judge its answers."""
    _, context = read_served_model(endpoint)
    workload = load_workload(
        list(KINDS),
        most_a_kind=-(-number // len(KINDS)),
        seed=0,
        context=None if context is None else context - 1,
        max_tokens=ANSWER_TOKENS,
    )
    requests, _ = split_requests(workload, None)

    async def run() -> list[AnswerRegret]:
        found = []
        async with open_client(endpoint) as client:
            model = await read_model(client)
            for request in requests[:number]:
                answer = await ask(client, request, model=model)
                profile = await judge_answer(client, key_of(answer), model)
                worst = max((0.0, *profile.regrets))
                found.append(
                    AnswerRegret(
                        prompt_id=request.prompt_id, tokens=len(answer.token_ids), worst=worst
                    )
                )
        return found

    return AnswerSample(answers=tuple(asyncio.run(run())))


def compare_answers(
    canary: AnswerSample, others: AnswerSample, *, dtype: str, error: float
) -> RegretEvidence:
    """Say whether more of the canary's answers are at fault, prompt by prompt."""
    gap = find_tolerance(dtype, ()).gap
    theirs = {one.prompt_id: one for one in others.answers}
    pairs = [(one, theirs[one.prompt_id]) for one in canary.answers if one.prompt_id in theirs]
    faults = [(ours.worst > gap, other.worst > gap) for ours, other in pairs]
    only_ours = sum(ours and not other for ours, other in faults)
    only_theirs = sum(other and not ours for ours, other in faults)
    return RegretEvidence(
        answers=len(pairs),
        tokens=sum(ours.tokens for ours, _ in pairs),
        canary_faults=sum(ours for ours, _ in faults),
        other_faults=sum(other for _, other in faults),
        canary_worst=_find_worst([ours for ours, _ in pairs]),
        other_worst=_find_worst([other for _, other in pairs]),
        gap=gap,
        is_worse=find_tail(only_ours, only_ours + only_theirs) <= error,
    )


def find_tail(heads: int, throws: int) -> float:
    """Return the probability of at least so many heads in throws of a fair coin."""
    return float(sum(comb(throws, one) for one in range(heads, throws + 1)) / 2**throws)


def _find_worst(answers: Sequence[AnswerRegret]) -> float:
    return max((one.worst for one in answers), default=0.0)
