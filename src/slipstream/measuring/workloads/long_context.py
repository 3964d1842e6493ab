"""Long documents with a question: logs, letters, minutes and more, drawn from a grammar.

The grammar is `data/long.toml`. The same id gives the same document, as long as tokens are
counted alike; no two documents begin alike, so no prefix cache can answer for another.

In a template `{word}` draws from that list (`{Word}` with a capital), `{3-9}` a number; `{n}`
counts the pieces, `{clock}` is a time that moves on from piece to piece.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from slipstream.measuring.workloads.workload import (
    TEMPLATE_TOKENS,
    TURN_TOKENS,
    CountTokens,
    Prompt,
)
from slipstream.records import Record

GRAMMAR = Path(__file__).parent / "data" / "long.toml"
SIZES = {f"long-{size}k": size * 1024 for size in (4, 8, 16, 32)}
MAX_TOKENS = 256

_SLOT = re.compile(r"\{(?:(\d+)-(\d+)|(\w+))\}")


class _Task(Record):
    plant: str
    ask: str


class _Genre(Record):
    clock: str
    step_seconds: tuple[int, int]
    joint: str
    title: str
    pieces: tuple[str, ...]
    cast: dict[str, str]
    words: dict[str, list[str]]
    tasks: tuple[_Task, ...]


@cache
def make_long_prompt(kind: str, name: str, number: int, count_tokens: CountTokens) -> Prompt:
    """Make a prompt that fills its size together with its answer and the chat template."""
    genres = _read_genres()
    rounds, turn = divmod(number - 1, len(genres))
    genre = genres[turn]
    task = genre.tasks[rounds % len(genre.tasks)]
    budget = SIZES[kind] - MAX_TOKENS - TEMPLATE_TOKENS - TURN_TOKENS
    return Prompt(
        id=name,
        kind=kind,
        messages=(
            {"role": "user", "content": _write(genre, task, budget, Random(name), count_tokens)},
        ),
        max_tokens=MAX_TOKENS,
        origin="slipstream",
    )


def _write(
    genre: _Genre, task: _Task, budget: int, chance: Random, count_tokens: CountTokens
) -> str:
    """Write pieces up to the budget, with the task's own piece somewhere among them."""
    writer = TemplateWriter(
        genre.words, genre.cast, chance, clock=genre.clock, step_seconds=genre.step_seconds
    )
    document, question = writer.write(genre.title), f"\n\n{writer.write(task.ask)}"
    used = count_tokens(document) + count_tokens(question)
    plant_at, planted = budget * chance.uniform(0.1, 0.9), False
    while True:
        plants = not planted and used >= plant_at
        piece = genre.joint + writer.write_piece((task.plant,) if plants else genre.pieces)
        used += count_tokens(piece)
        if used > budget:
            return document + question
        document += piece
        planted = planted or plants


@cache
def _read_genres() -> tuple[_Genre, ...]:
    grammar: dict[str, Any] = tomllib.loads(GRAMMAR.read_text())
    common = grammar.pop("words")
    return tuple(
        _Genre.model_validate({**entry, "words": {**common, **entry["words"]}})
        for entry in grammar.values()
    )


class TemplateWriter:
    """Fills templates; its clock moves on, and its cast is drawn once and for nothing else."""

    def __init__(
        self,
        words: Mapping[str, Sequence[str]],
        cast: Mapping[str, str],
        chance: Random,
        *,
        clock: str,
        step_seconds: tuple[int, int],
    ) -> None:
        self._words = words
        self._chance = chance
        self._clock = clock
        self._step_seconds = step_seconds
        self._moment = datetime(2026, 1, 5, 6) + timedelta(seconds=chance.randrange(20_000_000))
        self._number = 0
        self._drawn: set[str] = set()
        self._stacks: defaultdict[str, list[str]] = defaultdict(list)
        self._cast: dict[str, str] = {}
        for name, template in cast.items():
            self._cast[name] = self._fill(template)

    def write_piece(self, templates: Sequence[str]) -> str:
        """Write the next numbered piece, later than the one before, from one of the templates."""
        self._number += 1
        self._moment += timedelta(seconds=self._chance.randint(*self._step_seconds))
        return self.write(templates[0] if len(templates) == 1 else self._chance.choice(templates))

    def write(self, template: str) -> str:
        """Fill a template, drawing nothing twice if there is enough to draw from."""
        self._drawn = set(self._cast.values())
        return re.sub(r" +$", "", self._fill(template), flags=re.MULTILINE)

    def _fill(self, template: str) -> str:
        return _SLOT.sub(self._draw, template)

    def _draw(self, slot: re.Match[str]) -> str:
        low, high, name = slot.groups()
        if name is None:
            return str(self._chance.randint(int(low), int(high)))
        if name == "n":
            return str(self._number)
        if name == "clock":
            return self._moment.strftime(self._clock)
        if name in self._cast:
            return self._cast[name]
        text = self._fill(self._draw_word(name.lower()))
        return text[:1].upper() + text[1:] if name[0].isupper() else text

    def _draw_word(self, name: str) -> str:
        """Draw as from a stack of cards: none comes again before it is shuffled anew."""
        stack = self._stacks[name]
        if not any(word not in self._drawn for word in stack):
            stack[:] = self._chance.sample(words := self._words[name], len(words))
        word = next((word for word in stack if word not in self._drawn), stack[0])
        stack.remove(word)
        self._drawn.add(word)
        return word
