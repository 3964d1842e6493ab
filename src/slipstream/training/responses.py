"""What an engine answers: the target's own text to train on, and what it accepts of drafts.

One JSON line per response, written as it comes: an interrupted stage goes on where it stopped.
"""

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer, Request, ask, ask_all
from slipstream.measuring.workloads.lines import read_lines
from slipstream.records import Record
from slipstream.steering.drafts import Drafts
from slipstream.training.prompts import Conversation
from slipstream.training.run import TrainSettings


class Response(Record):
    """A prompt after the chat template, and the target's answer, in tokens."""

    id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    finish_reason: str


def regenerate(
    url: str,
    conversations: Sequence[Conversation],
    path: Path,
    settings: TrainSettings,
    report: Callable[[int, int, int], None],
    *,
    concurrency: int,
) -> None:
    """Append the answer to every conversation that is not in the file yet.

    `report` gets how many are there, of how many, and their tokens; first before any work.
    """
    wanted = {conversation.id for conversation in conversations}
    lengths = {row.id: len(row.response_ids) for row in _resume(path) if row.id in wanted}
    missing = [conversation for conversation in conversations if conversation.id not in lengths]
    report(len(lengths), len(wanted), sum(lengths.values()))
    with path.open("a", encoding="utf-8") as file:

        def keep(number: int, answer: Answer) -> None:
            response = Response(
                id=missing[number].id,
                prompt_ids=answer.prompt_ids,
                response_ids=answer.token_ids,
                finish_reason=answer.finish_reason,
            )
            file.write(f"{response.model_dump_json()}\n")
            file.flush()
            lengths[response.id] = len(response.response_ids)
            report(len(lengths), len(wanted), sum(lengths.values()))

        requests = _make_requests(missing, settings)
        ask_all(url, requests, ask, concurrency=concurrency, on_answer=keep)


def read_responses(path: Path) -> tuple[Response, ...]:
    """Read what `regenerate` wrote, in the order in which the answers came."""
    hint = f"remove {path}, and run the same command again"
    return tuple(line.record for line in read_lines([path], Response, hint=hint))


def measure_served(
    url: str,
    conversations: Sequence[Conversation],
    settings: TrainSettings,
    report: Callable[[int, int], None],
) -> dict[str, Drafts]:
    """Have a server answer greedily, one request at a time, and count its drafts by kind."""
    answers: list[Answer] = []

    def keep(_: int, answer: Answer) -> None:
        answers.append(answer)
        report(len(answers), len(conversations))

    report(0, len(conversations))
    measured = {}
    by_kind = sorted(conversations, key=lambda conversation: conversation.kind)
    for kind, group in groupby(by_kind, key=lambda conversation: conversation.kind):
        requests = _make_requests(list(group), settings)
        ask_all(url, requests, ask, concurrency=1, on_answer=keep)
        measured[kind] = Drafts.total(one.drafts for one in answers[-len(requests) :])
        if not measured[kind].drafts:
            raise EngineError(
                f"the server reported no drafts for {len(requests)} prompts of kind {kind}",
                hint="start it with a drafter and --per-request-spec-decode-metrics summary",
            )
    return measured


def make_request(conversation: Conversation, *, max_tokens: int, thinking: bool | None) -> Request:
    """Return a greedy request; None leaves thinking to the chat template."""
    return Request(
        messages=conversation.messages,
        max_tokens=max_tokens,
        extra={} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}},
    )


def _make_requests(rows: Sequence[Conversation], settings: TrainSettings) -> list[Request]:
    most, thinking = settings.max_tokens, settings.thinking
    return [make_request(row, max_tokens=most, thinking=thinking) for row in rows]


def _resume(path: Path) -> tuple[Response, ...]:
    """Return the rows of an earlier run; the line in which it died is cut off."""
    if not path.exists():
        return ()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return read_responses(path)
