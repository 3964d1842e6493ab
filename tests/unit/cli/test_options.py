"""An argument is written as the help shows it; a number makes sense, or is a usage error."""

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.cli.options import OptionAdder, natural_number, positive_number, whole_number


def parse(words: str, *typed: str, **more: Any) -> object:
    """Return what an argument takes from the words that were typed."""
    parser = ArgumentParser()
    OptionAdder(parser)(words, "what it is", dest="it", **more)
    return parser.parse_args(typed).it


@pytest.mark.parametrize(
    ("words", "typed", "value"),
    [
        ("--now", ("--now",), True),
        ("--now", (), False),
        ("-f --follow", ("-f",), True),
        ("--port N", ("--port", "8"), 8),
        ("--out FILE", ("--out", "a.json"), Path("a.json")),
        ("--name NAME", ("--name", "a"), "a"),
        ("--file FILE ...", ("--file", "a", "b"), [Path("a"), Path("b")]),
        ("TARGET", ("a",), "a"),
        ("[RUN]", (), None),
        ("[GROUP ...]", ("a", "b"), ["a", "b"]),
    ],
)
def test_an_argument_is_written_as_the_help_shows_it(
    words: str, typed: tuple[str, ...], value: object
) -> None:
    assert parse(words, *typed) == value


def test_the_help_ends_with_the_default_unless_it_names_one() -> None:
    parser = ArgumentParser(prog="it", add_help=False)
    add = OptionAdder(parser).group("numbers")
    add("--seed N", "seed", natural_number, 0)
    add("--kinds NAME ...", "kinds", default=("code", "prose"))
    add("--port N", "port (default: any)", default=8)
    either = add.exclusive()
    either("--events", "events")
    either("--access", "requests")
    told = " ".join(parser.format_help().split())
    assert "numbers: --seed N seed (default 0) --kinds NAME [NAME ...]" in told
    assert "kinds (default code prose) --port N port (default: any) --events" in told
    assert "[--events | --access]" in told


@given(some.integers(0, 10**12))
def test_a_seed_is_any_whole_number_from_zero_on(number: int) -> None:
    assert natural_number(str(number)) == number


@given(some.integers(1, 10**12))
def test_a_count_is_any_whole_number_above_zero(number: int) -> None:
    assert whole_number(str(number)) == number


@pytest.mark.parametrize("text", ["-1", "1.5", "", "many", "1e3"])
def test_what_is_no_whole_number_is_neither_a_seed_nor_a_count(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"'{text}' is not a whole number of zero or more"):
        natural_number(text)
    with pytest.raises(ArgumentTypeError, match=f"'{text}' is not a whole number above zero"):
        whole_number(text)


def test_no_count_is_zero() -> None:
    with pytest.raises(ArgumentTypeError, match="'0' is not a whole number above zero"):
        whole_number("0")


@given(some.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_a_rate_is_any_number_above_zero(number: float) -> None:
    assert positive_number(str(number)) == number


@pytest.mark.parametrize("text", ["0", "-1e-3", "nan", "inf", "-inf", "1e999", "", "fast"])
def test_what_is_no_number_above_zero_is_no_rate(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^'{text}' is not a number above zero$"):
        positive_number(text)
