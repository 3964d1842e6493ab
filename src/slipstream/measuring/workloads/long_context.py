"""Long documents with a question: logs, letters, minutes and more, drawn from a grammar.

The grammar is `data/long.toml`. The same id gives the same document, as long as tokens are
counted alike; no two documents begin alike, so no prefix cache can answer for another.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from slipstream.measuring.workloads.fitting import TEMPLATE_TOKENS, TURN_TOKENS, CountTokens
from slipstream.measuring.workloads.template_writer import TemplateWriter
from slipstream.measuring.workloads.workload import Prompt

GRAMMAR = Path(__file__).parent / "data" / "long.toml"
SIZES = {f"long-{size}k": size * 1024 for size in (4, 8, 16, 32)}
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class _Task:
    plant: str
    ask: str


@dataclass(frozen=True, slots=True)
class _Genre:
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
        _Genre(
            clock=entry["clock"],
            step_seconds=(entry["step_seconds"][0], entry["step_seconds"][1]),
            joint=entry["joint"],
            title=entry["title"],
            pieces=tuple(entry["pieces"]),
            cast=entry["cast"],
            words={**common, **entry["words"]},
            tasks=tuple(_Task(**task) for task in entry["tasks"]),
        )
        for entry in grammar.values()
    )
