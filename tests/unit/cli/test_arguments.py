"""A verb is found in its group's package; a number is one that makes sense, or a usage error."""

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.cli.arguments import load_verb
from slipstream.cli.options import natural_number, positive_number, whole_number


def test_a_verbs_module_is_in_the_package_of_its_group() -> None:
    assert vars(load_verb("status"))["__name__"] == "slipstream.cli.serving.status"
    assert vars(load_verb("fleet status"))["__name__"] == "slipstream.cli.fleet.status"
    assert vars(load_verb("config"))["__name__"] == "slipstream.cli.config"


@given(some.integers(0, 10**12))
def test_a_seed_is_any_whole_number_from_zero_on(number: int) -> None:
    assert natural_number(str(number)) == number


@given(some.integers(1, 10**12))
def test_a_count_is_any_whole_number_above_zero(number: int) -> None:
    assert whole_number(str(number)) == number


@pytest.mark.parametrize("text", ["-1", "1.5", "", "many", "1e3"])
def test_what_is_no_whole_number_is_neither_a_seed_nor_a_count(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"'{text}' is not a whole number from zero on"):
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
