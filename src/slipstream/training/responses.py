"""Stage two: the target answers every prompt itself, greedily.

One JSON line an answer, written as it comes: an interrupted stage goes on where it stopped.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.measuring.client.completions import Answer, Request, ask_all
from slipstream.records import Record, describe_faults
from slipstream.training.prompts import Conversation


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
    *,
    max_tokens: int,
    thinking: bool | None,
    concurrency: int,
    report: Callable[[int, int, int], None],
) -> None:
    """Append the answer to every conversation that is not in the file yet.

    `report` is told how many are there, of how many, and their tokens; first before any work.
    """
    wanted = {conversation.id for conversation in conversations}
    lengths = {row.id: len(row.response_ids) for row in _resume(path) if row.id in wanted}
    missing = [conversation for conversation in conversations if conversation.id not in lengths]
    report(len(lengths), len(wanted), sum(lengths.values()))
    with path.open("a", encoding="utf-8") as file:

        def keep(number: int, answer: Answer) -> None:
            response = _make_response(missing[number].id, answer)
            file.write(f"{response.model_dump_json()}\n")
            file.flush()
            lengths[response.id] = len(response.response_ids)
            report(len(lengths), len(wanted), sum(lengths.values()))

        requests = [make_request(one, max_tokens=max_tokens, thinking=thinking) for one in missing]
        ask_all(url, requests, concurrency=concurrency, on_answer=keep)


def read_responses(path: Path) -> tuple[Response, ...]:
    """Read what `regenerate` wrote, in the order in which the answers came."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read {path}: {fault.strerror or fault}", hint="run the same command again"
        ) from fault
    return tuple(_parse(path, number, line) for number, line in enumerate(lines, start=1))


def make_request(conversation: Conversation, *, max_tokens: int, thinking: bool | None) -> Request:
    """Return a greedy request; None leaves thinking to the chat template."""
    return Request(
        messages=tuple(message.model_dump() for message in conversation.messages),
        max_tokens=max_tokens,
        extra={} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}},
    )


def _make_response(name: str, answer: Answer) -> Response:
    return Response(
        id=name,
        prompt_ids=answer.prompt_ids,
        response_ids=answer.token_ids,
        finish_reason=answer.finish_reason,
    )


def _resume(path: Path) -> tuple[Response, ...]:
    """Return the rows of an earlier run; the line in which it died is cut off."""
    if not path.exists():
        return ()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return read_responses(path)


def _parse(path: Path, number: int, line: bytes) -> Response:
    try:
        return Response.model_validate_json(line)
    except ValidationError as fault:
        raise InvalidInputError(
            f"line {number} of {path} is not a response",
            details=describe_faults(fault),
            hint=f"remove {path}, and run the same command again",
        ) from fault
