"""`TemplateWriter`: texts drawn from templates by chance, the same for the same seed.

`{word}` draws from that list (`{Word}` with a capital), `{3-9}` a number; `{n}` counts the pieces,
`{clock}` is a time that moves on from piece to piece.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import Random

_SLOT = re.compile(r"\{(?:(\d+)-(\d+)|(\w+))\}")


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
