"""Which patterns an answer may be held to: those that leave one way to go on at every character.

vLLM walks a pattern in the engine's own loop, for all requests at once. On an ambiguous one it
keeps every way of reading the answer, and '(.*){1,100}x' stops the engine for everybody
within four tokens. A pattern is plain if the next character always says where in the pattern
one is (a deterministic expression, as in XML schemas), and it does not count far. A plain one still
has a cost: repeats are written out, and each set of letters is compared with most tokens.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

ASCII = 128
# Past 128, xgrammar 0.2 counts repetitions in a way that takes up to half a second a token, and
# '.{1000}' takes a second to read besides.
MOST_REPEATS = 100
# The cost of a place in a pattern, in units of `schema_cost`: most tokens are letters, and most of
# those begin with a space.
LEAST_UNITS = 0.1
LETTER_UNITS = 0.5
MOST_LETTER_UNITS = 6.0
TIMES_WITH_SPACE = 3
_OTHER = 1 << ASCII  # One bit stands for every character beyond ASCII.
_ANY = (_OTHER << 1) - 1


def _bits(characters: str) -> int:
    return sum(1 << ord(one) for one in {*characters})


_DIGITS = _bits("0123456789")
_WORD = _bits("_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LETTERS = _WORD & ~_DIGITS
_SPACE = _bits(" \t\n\r\f\v")
_CLASSES = {
    **{"d": _DIGITS, "w": _WORD, "s": _SPACE | _OTHER},
    **{"D": _ANY & ~_DIGITS, "W": _ANY & ~_WORD, "S": _ANY & ~_SPACE},
    **{name: _bits(meant) for name, meant in zip("tnrfv", "\t\n\r\f\v", strict=True)},
}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)", re.ASCII)
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d{1,9})(,)?(\d{1,9})?\})\??")


class _Ambiguous(Exception):
    """The pattern is ambiguous or cannot be parsed."""


class _Part(NamedTuple):
    """The first characters of a part, the positions where it can end, and its cost."""

    first: int = 0
    nullable: bool = True
    last: tuple[int, ...] = ()
    units: float = 0


_NOTHING = _Part()


def is_plain(pattern: str) -> bool:
    """Return whether a pattern leaves one way to go on at every character."""
    return _weigh_plain(pattern) is not None


def weigh_pattern(pattern: str) -> float:
    """Return the cost of a plain pattern, in units of `schema_cost`."""
    return _weigh_plain(pattern) or 0


def list_patterns(schema: dict[str, Any]) -> list[str]:
    """List the patterns of one object of a schema."""
    named = schema.get("patternProperties")
    patterns = [*named] if isinstance(named, dict) else []
    if isinstance(pattern := schema.get("pattern"), str):
        patterns.append(pattern)
    return patterns


@lru_cache(maxsize=1024)
def _weigh_plain(pattern: str) -> float | None:
    try:
        return _Reader(pattern).read().units
    except _Ambiguous:
        return None


@dataclass(slots=True)
class _Reader:
    """Parses a pattern; `follow` has, for every position, the characters that may come next."""

    pattern: str
    at: int = 0
    follow: list[int] = field(default_factory=list)

    def read(self) -> _Part:
        outer: list[tuple[_Part | None, _Part]] = []
        ways: _Part | None = None
        sequence = _NOTHING
        while self.at < len(self.pattern):
            match character := self._take():
                case "(":
                    outer.append((ways, sequence))
                    ways, sequence = None, _NOTHING
                    self._skip_name_of_group()
                case ")" if outer:
                    group = _either(ways, sequence)
                    ways, sequence = outer.pop()
                    sequence = self._join(sequence, self._repeat(group))
                case "|":
                    ways, sequence = _either(ways, sequence), _NOTHING
                case "^" | "$":
                    pass
                case _:
                    part = self._place(self._read_set(character))
                    sequence = self._join(sequence, self._repeat(part))
        if outer:
            raise _Ambiguous
        return _either(ways, sequence)

    def _take(self) -> str:
        if self.at >= len(self.pattern):
            raise _Ambiguous
        self.at += 1
        return self.pattern[self.at - 1]

    def _skip_name_of_group(self) -> None:
        if self.pattern.startswith("?", self.at):
            named = _GROUP.match(self.pattern, self.at)
            if named is None:
                raise _Ambiguous
            self.at = named.end()

    def _place(self, characters: int) -> _Part:
        self.follow.append(0)
        return _Part(
            characters, nullable=False, last=(len(self.follow) - 1,), units=_weigh_set(characters)
        )

    def _join(self, left: _Part, right: _Part) -> _Part:
        for place in left.last:
            self.follow[place] = _disjoint(self.follow[place], right.first)
        return _Part(
            first=_disjoint(left.first, right.first) if left.nullable else left.first,
            nullable=left.nullable and right.nullable,
            last=left.last + right.last if right.nullable else right.last,
            units=left.units + right.units,
        )

    def _repeat(self, part: _Part) -> _Part:
        found = _QUANTIFIER.match(self.pattern, self.at)
        if found is None:
            return part
        self.at = found.end()
        if _QUANTIFIER.match(self.pattern, self.at):
            raise _Ambiguous
        least, most = _read_bounds(found)
        repeats = least + 1 if most is None else most
        if repeats > MOST_REPEATS:
            raise _Ambiguous
        if most is None or most > 1:
            if part.nullable:
                raise _Ambiguous
            for place in part.last:
                again = _disjoint(self.follow[place], part.first)
                if least != most:  # Else the count says when it is over.
                    self.follow[place] = again
        return _Part(part.first, part.nullable or least == 0, part.last, part.units * repeats)

    def _read_set(self, character: str) -> int:
        if character == ".":
            return _ANY & ~_bits("\n")
        if character == "\\":
            return self._read_escape()
        if character in "*+?{}])":
            raise _Ambiguous
        return self._read_class() if character == "[" else _one(character)

    def _read_class(self) -> int:
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        characters = 0
        while (character := self._take()) != "]":
            one = self._read_escape() if character == "\\" else _one(character)
            if self.pattern.startswith("-", self.at) and not self.pattern.startswith("-]", self.at):
                self.at += 1
                end = self._take()
                one = _range(one, self._read_escape() if end == "\\" else _one(end))
            characters |= one
        # What is beyond ASCII is one bit: a class without some of it has the others.
        return (_ANY & ~characters | _OTHER) if negated else characters

    def _read_escape(self) -> int:
        if found := _HEX.match(self.pattern, self.at):
            self.at = found.end()
            return _one(chr(int(found[1] or found[2], 16)))
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.isalnum():  # A boundary, a back reference, a property of Unicode.
            raise _Ambiguous
        return _one(character)


def _read_bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    sign, least, comma, most = quantifier.groups()
    if sign is not None:
        return int(sign == "+"), 1 if sign == "?" else None
    if comma is None:
        return int(least), int(least)
    return int(least), None if most is None else int(most)


def _weigh_set(characters: int) -> float:
    units = min(MOST_LETTER_UNITS, LETTER_UNITS * (characters & _LETTERS).bit_count())
    return max(LEAST_UNITS, units * (TIMES_WITH_SPACE if characters & _bits(" ") else 1))


def _either(one: _Part | None, other: _Part) -> _Part:
    if one is None:
        return other
    if one.nullable and other.nullable:
        raise _Ambiguous
    return _Part(
        _disjoint(one.first, other.first),
        one.nullable or other.nullable,
        one.last + other.last,
        one.units + other.units,
    )


def _disjoint(one: int, other: int) -> int:
    if one & other:
        raise _Ambiguous
    return one | other


def _one(character: str) -> int:
    return 1 << min(ord(character), ASCII)


def _range(start: int, end: int) -> int:
    if start.bit_count() != 1 or end.bit_count() != 1 or end < start:
        raise _Ambiguous
    return (end << 1) - start
