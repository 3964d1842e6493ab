"""Prompts read as conversations, and split into training and held-out.

The split goes by group, never by conversation: what begins alike stays on one side, so that
no drafter is evaluated on a text that it has all but seen.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.measuring.workloads.lines import PROMPTS_HINT, Line, Turn, find_obstacle, read_lines
from slipstream.records import Record


class Conversation(Record):
    """A prompt for the target; `id` is the same for the same text of any kind.

    `tokens` is its length after the target's chat template, once that was counted.
    """

    id: str
    kind: str
    group: str
    held_out: bool
    messages: tuple[dict[str, str], ...]
    tokens: int | None = None

    @property
    def characters(self) -> int:
        return sum(len(message["content"]) for message in self.messages)


def read_prompts(
    files: Sequence[Path], *, seed: int, held_out_share: float = 0.05, least_held_out: int = 4
) -> tuple[tuple[Conversation, ...], dict[str, int]]:
    """Read prompts and chat logs; of several that are alike the first is kept.

    The counts say how many lines were read, left out and put on either side.
    """
    if not 0 <= held_out_share < 1:
        message = f"the held-out share is {held_out_share:g}, not from 0 to below 1"
        raise InvalidInputError(message, hint="use a share such as 0.05")
    lines = read_lines(files, Line, hint=PROMPTS_HINT)
    skipped: Counter[str] = Counter()
    kept: dict[str, Conversation] = {}
    for file, _, line in lines:
        if (obstacle := _find_obstacle(line.turns)) is not None:
            skipped[obstacle] += 1
        else:
            conversation = _make_conversation(line, file.stem)
            kept.setdefault(conversation.id, conversation)
    if not kept:
        details = tuple(f"{reason}: {count}" for reason, count in sorted(skipped.items()))
        message = f"no usable prompt in {len(lines)} lines"
        raise InvalidInputError(message, details=details, hint=PROMPTS_HINT)
    chosen = _decide_held_out(kept.values(), held_out_share, least_held_out, seed)
    placed = tuple(
        one.model_copy(update={"held_out": one.group in chosen}) for one in kept.values()
    )
    held_out = sum(one.held_out for one in placed)
    return placed, {
        "read": len(lines),
        "duplicates": len(lines) - skipped.total() - len(kept),
        "skipped": skipped.total(),
        "training": len(placed) - held_out,
        "held_out": held_out,
    }


def count_tokens(
    target: Path, conversations: Sequence[Conversation], thinking: bool | None
) -> tuple[Conversation, ...]:
    """Return the conversations with their lengths; None leaves thinking to the template."""
    from transformers import AutoTokenizer

    prompts: Any = AutoTokenizer.from_pretrained(target).apply_chat_template(
        [list(one.messages) for one in conversations],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **({} if thinking is None else {"enable_thinking": thinking}),
    )
    return tuple(
        one.model_copy(update={"tokens": len(prompt)})
        for one, prompt in zip(conversations, prompts, strict=True)
    )


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> None:
    write_atomically(path, "".join(f"{one.model_dump_json()}\n" for one in conversations).encode())


def read_conversations(path: Path) -> tuple[Conversation, ...]:
    hint = f"create {path} again from its prompts"
    return tuple(line.record for line in read_lines([path], Conversation, hint=hint))


def _find_obstacle(turns: Sequence[Turn]) -> str | None:
    """Return why the target cannot be asked this as text, if it cannot."""
    return "tool calls" if any(turn.tool_calls for turn in turns) else find_obstacle(turns)


def _make_conversation(line: Line, kind: str) -> Conversation:
    normalised = [(turn.role, " ".join(turn.text.casefold().split())) for turn in line.turns]
    first = next(content for role, content in normalised if role == "user")
    return Conversation(
        id=_hash(json.dumps(normalised))[:16],
        kind=line.kind or kind,
        group=line.group or _hash(first)[:16],
        held_out=False,
        messages=tuple({"role": turn.role, "content": turn.text} for turn in line.turns),
    )


def _decide_held_out(
    conversations: Iterable[Conversation], share: float, least: int, seed: int
) -> set[str]:
    """Choose groups by their hash up to every kind's share; then small ones, up to the least."""
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in conversations:
        groups[one.group][one.kind] += 1
    sizes = sum(groups.values(), Counter[str]())
    floors = Counter({kind: least for kind, size in sizes.items() if size >= 10 * least})
    shares = Counter({kind: round(share * size) for kind, size in sizes.items()})
    most = Counter({kind: size - 1 for kind, size in sizes.items()})
    goals = (shares | floors) & most
    by_hash = sorted(groups, key=lambda group: _hash(f"{seed}:{group}"))
    by_size = sorted(by_hash, key=lambda group: groups[group].total())
    held: Counter[str] = Counter()
    chosen: set[str] = set()
    for walk, wanted, limits in ((by_hash, goals, goals), (by_size, floors, most)):
        for group in walk:
            short = any(held[kind] < wanted[kind] for kind in groups[group])
            if short and group not in chosen and held + groups[group] <= limits:
                held += groups[group]
                chosen.add(group)
    return chosen


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
