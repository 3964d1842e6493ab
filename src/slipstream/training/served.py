"""The final measure of a drafter: what a running engine accepts, by kind of prompt."""

import time
from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer, ask_all
from slipstream.records import Record
from slipstream.training.prompts import Conversation
from slipstream.training.responses import make_request


class ServedAcceptance(Record):
    """The acceptance of an engine's drafts, and the seconds from first prompt to last token.

    `by_position` is the share of drafts whose first, second, ... token was accepted.
    """

    requests: int
    tokens: int
    drafts: int
    accepted: int
    tokens_per_step: float
    by_position: tuple[float, ...]
    seconds: float


def measure_served(
    url: str,
    conversations: Sequence[Conversation],
    *,
    max_tokens: int,
    thinking: bool | None,
    concurrency: int,
    report: Callable[[int, int], None],
) -> dict[str, ServedAcceptance]:
    """Have a server answer greedily, one kind after the other, and count its drafts."""
    answers: list[Answer] = []

    def keep(_: int, answer: Answer) -> None:
        answers.append(answer)
        report(len(answers), len(conversations))

    report(0, len(conversations))
    measured = {}
    by_kind = sorted(conversations, key=lambda conversation: conversation.kind)
    for kind, group in groupby(by_kind, key=lambda conversation: conversation.kind):
        requests = [make_request(one, max_tokens=max_tokens, thinking=thinking) for one in group]
        started = time.monotonic()
        ask_all(url, requests, concurrency=concurrency, on_answer=keep)
        seconds = time.monotonic() - started
        measured[kind] = summarize(kind, answers[-len(requests) :], seconds)
    return measured


def summarize(kind: str, answers: Sequence[Answer], seconds: float) -> ServedAcceptance:
    """Add up the drafts of one kind's answers."""
    drafts = sum(answer.drafts for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    if drafts == 0:
        raise EngineError(
            f"the server reported no drafts for {len(answers)} prompts of kind {kind}",
            hint="start it with a drafter and --per-request-spec-decode-metrics summary",
        )
    positions = zip_longest(*(answer.accepted_by_position for answer in answers), fillvalue=0)
    return ServedAcceptance(
        requests=len(answers),
        tokens=sum(len(answer.token_ids) for answer in answers),
        drafts=drafts,
        accepted=accepted,
        tokens_per_step=1 + accepted / drafts,
        by_position=tuple(sum(counts) / drafts for counts in positions),
        seconds=seconds,
    )
