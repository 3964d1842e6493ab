"""A pattern is plain if every character says where in it one is; all others are refused."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.vllm_plugin.gate.constraints.patterns import is_plain

PLAIN = [
    *("", "yes|no|maybe", "yes|yep", "ye(s|p)|no", r"^\d{4}-\d{2}-\d{2}$", r"\d{4}\d{2}"),
    *(r"(\d{3}-){2}\d{4}", r"[A-Z]{2,3}-\d+(\.\d+)?", r"[^@\s]+@[a-z0-9]+\.(com|org)"),
    *(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", r"(?:[a-z]+, )*[A-Z]\w*", r"(\w+\s)*"),
    *(r"(?<year>\d+)/(?P<month>\d+)", r"([a-z]+,){1,100};", r"#[0-9a-fA-F]{6}", r"[^\"\\]*"),
    *(r"[\w.-]+", r"[\]a]", r"\x41\u00e9+", r"(a|)b", r"a*?b", r".{1,100}", r".{100}"),
    *("[a-z]{3,}", "é+", "é|ü"),
]
AMBIGUOUS = [
    *("(.*){1,100}[bc]", "(a+)+b", "(a*)*", "(a?){1,1000}", "(|a)*", "(a|b?){100}", ".*.*", ".*a"),
    *("[a-z]*b", ".{0,9}.{0,9}", "(.?)(.?)", "(.|a){500}", "([a-z]{1,10}){1,10}", "(a+b?)+"),
    *("a|a", "a?|b?", "(a|b)?a", "[^é]*é", r"\w*_", r"\s*\u00a0"),
]
COUNTED_FAR = [".{1,101}", "([a-z]|-){1,1000}", "a{0,999999999}", ".{101}", ".{1000}", "a{100,}"]
UNREADABLE = [
    *("(", ")", "a)", "[a", "[z-a]", "a{", "a{x}", "{1}", "*a", "a**", "a{1,2}{3}", "\\", "]"),
    *("[]", "[^]", "[]a]", "a{,3}", "a++", "(?>a)", "(?#a)", r"\a", r"\0", r"[\b]", "(?P=a)"),
    "[[a]",
    *("(?=a)", "(?!a)", "(?<=a)", "(?i)a", r"\bfoo", r"\1", r"\p{L}+", r"\Qa\E", r"[\d-z]"),
]


@pytest.mark.parametrize("pattern", PLAIN)
def test_a_pattern_with_one_way_to_go_on_is_plain(pattern: str) -> None:
    assert is_plain(pattern)


@pytest.mark.parametrize("pattern", [*AMBIGUOUS, *COUNTED_FAR, *UNREADABLE])
def test_another_is_not(pattern: str) -> None:
    assert not is_plain(pattern)


@given(st.sampled_from([one for one in PLAIN if one]), st.sampled_from(["*", "+", "{1,9}"]))
def test_what_can_be_read_twice_is_refused_when_repeated_within_itself(
    pattern: str, sign: str
) -> None:
    assert not is_plain(f"(({pattern}){sign}){sign}")


@pytest.mark.parametrize(
    "pattern",
    [
        *("(" * 1024 + ")" * 1024, "(" * 2048, "a" * 2048, "(a|b)" * 400, "a?b?c?" * 340),
        *("[^a]" * 512, "\\" * 2048, "a|" * 1024),
        "".join(f"{chr(33 + number % 90)}?" for number in range(1024)),
    ],
    ids=lambda pattern: pattern[:12],
)
def test_a_long_pattern_is_judged_in_milliseconds(pattern: str) -> None:
    started = time.process_time()
    is_plain(pattern)
    assert time.process_time() - started < 0.5
