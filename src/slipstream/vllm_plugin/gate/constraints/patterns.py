"""Which patterns an answer may be held to: those that leave one way to go on at every character.

vLLM walks a pattern in the engine's own loop, for all requests at once, and on an ambiguous one it
keeps every way of reading the answer. '(a*b*)*c' compiles at once and its first masks take 0.02 ms,
but 166 ms each after 900 characters: no trial of a few tokens would find that. So a pattern has to
be plain: the next character always tells where in the pattern one is (a deterministic expression,
as in XML schemas), and it does not count far.
"""

import re
import warnings
from functools import reduce
from importlib import import_module
from typing import Any, NamedTuple

ASCII = 128
# Past 128, xgrammar 0.2 counts repetitions in a way that takes up to half a second a token.
MOST_REPEATS = 100
_OTHER = 1 << ASCII  # One bit stands for every character beyond ASCII.
_ANY = (_OTHER << 1) - 1
# Escapes and classes, so that what is left are the signs of the pattern itself. A class without its
# end, too, which is an error later: to look for that from every bracket again would take long.
_WITHIN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?", re.DOTALL)
_COUNT = re.compile(r"\{\d{1,9}(?:,\d{0,9})?\}", re.ASCII)
_ODD = re.compile(r"[][{}]|\(\?(?!:|P?<[A-Za-z_])")
_NAME = re.compile(r"\(\?<(?=[A-Za-z_])")
_ESCAPES = frozenset("dDwWsStnrfvxu")

# Python's own parser of patterns; what it reads otherwise than xgrammar is refused before.
_parser: Any = import_module("re._parser")
_codes: Any = import_module("re._constants")


def _bits(pattern: str) -> int:
    return sum(1 << code for code in range(ASCII) if re.fullmatch(pattern, chr(code), re.ASCII))


_CATEGORIES = {
    _codes.CATEGORY_DIGIT: _bits(r"\d"),
    _codes.CATEGORY_WORD: _bits(r"\w"),
    _codes.CATEGORY_SPACE: _bits(r"[ \t\n\r\f\v]") | _OTHER,
    _codes.CATEGORY_NOT_DIGIT: _ANY & ~_bits(r"\d"),
    _codes.CATEGORY_NOT_WORD: _ANY & ~_bits(r"\w"),
    _codes.CATEGORY_NOT_SPACE: _ANY & ~_bits(r"[ \t\n\r\f\v]"),
}


class _Ambiguous(Exception):
    """The pattern is ambiguous, or no pattern that both parsers read alike."""


class _Part(NamedTuple):
    """The first characters of a part, and the positions where it can end."""

    first: int = 0
    nullable: bool = True
    last: tuple[int, ...] = ()


def is_plain(pattern: str) -> bool:
    """Return whether a pattern leaves one way to go on at every character."""
    within = _WITHIN.findall(pattern)
    strange = {"[]", "[^]"} & {*within} or any(
        one[0] == "\\" and one[1].isalnum() and one[1] not in _ESCAPES
        for text in within
        for one in re.findall(r"\\.", text, re.DOTALL)
    )
    if strange or _ODD.search(_COUNT.sub("", _WITHIN.sub("a", pattern))):
        return False
    try:
        with warnings.catch_warnings(action="error"):  # Of signs that may get another meaning.
            _Reader().read(_parser.parse(_NAME.sub("(?P<", pattern)))
    except (_Ambiguous, re.error, RecursionError, FutureWarning):
        return False
    return True


class _Reader:
    """Numbers the positions; `follow` has, for each, the characters that may come next."""

    def __init__(self) -> None:
        self.follow: list[int] = []

    def read(self, items: Any) -> _Part:
        return reduce(self._join, (self._read_item(*item) for item in items), _Part())

    def _read_item(self, code: Any, value: Any) -> _Part:
        if code in (_codes.MAX_REPEAT, _codes.MIN_REPEAT):
            return self._repeat(*value)
        if code is _codes.BRANCH:
            return reduce(_either, map(self.read, value[1]))
        if code is _codes.SUBPATTERN:
            return self.read(value[-1])
        if code is _codes.AT and value in (_codes.AT_BEGINNING, _codes.AT_END):
            return _Part()
        self.follow.append(0)
        return _Part(_read_set(code, value), False, (len(self.follow) - 1,))

    def _join(self, left: _Part, right: _Part) -> _Part:
        for place in left.last:
            self.follow[place] = _disjoint(self.follow[place], right.first)
        return _Part(
            first=_disjoint(left.first, right.first) if left.nullable else left.first,
            nullable=left.nullable and right.nullable,
            last=left.last + right.last if right.nullable else right.last,
        )

    def _repeat(self, least: int, most: Any, items: Any) -> _Part:
        part, endless = self.read(items), most is _codes.MAXREPEAT
        if (least + 1 if endless else most) > MOST_REPEATS:
            raise _Ambiguous
        if endless or most > 1:
            if part.nullable:
                raise _Ambiguous
            for place in part.last:
                again = _disjoint(self.follow[place], part.first)
                if least != most:  # Else the count says when it is over.
                    self.follow[place] = again
        return _Part(part.first, part.nullable or least == 0, part.last)


def _read_set(code: Any, value: Any) -> int:
    if code is _codes.ANY:
        return _ANY & ~(1 << ord("\n"))
    if code is _codes.NOT_LITERAL:
        return _ANY & ~_range(value, value) | _OTHER
    if code is not _codes.IN:
        return _read_some(code, value)
    negated = value[0][0] is _codes.NEGATE
    found = reduce(int.__or__, (_read_some(*one) for one in value[negated:]), 0)
    # What is beyond ASCII is one bit: a class without some of it has the others.
    return (_ANY & ~found | _OTHER) if negated else found


def _read_some(code: Any, value: Any) -> int:
    if code is _codes.LITERAL:
        return _range(value, value)
    if code is _codes.RANGE:
        return _range(*value)
    if code is _codes.CATEGORY and value in _CATEGORIES:
        return _CATEGORIES[value]
    raise _Ambiguous


def _range(start: int, end: int) -> int:
    return (2 << min(end, ASCII)) - (1 << min(start, ASCII))


def _either(one: _Part, other: _Part) -> _Part:
    if one.nullable and other.nullable:
        raise _Ambiguous
    first = _disjoint(one.first, other.first)
    return _Part(first, one.nullable or other.nullable, one.last + other.last)


def _disjoint(one: int, other: int) -> int:
    if one & other:
        raise _Ambiguous
    return one | other
