"""A value fits a schema of ours or is named where it does not."""

from typing import Any

import pytest

from slipstream.measuring.verifying.conformance.cases import CASES, TRIP
from slipstream.measuring.verifying.conformance.schema_fit import find_misfit
from tests.unit.measuring.verifying.conformance.toy_calls import fill

SCHEMAS = [
    *(tool.schema for case in CASES for tool in case.tools),
    *(case.schema for case in CASES if case.schema),
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_fits_has_no_misfit(schema: dict[str, Any]) -> None:
    assert find_misfit(fill(schema), schema) is None


@pytest.mark.parametrize(
    ("change", "misfit"),
    [
        ({"budget": True}, "arguments.budget is not number: True"),
        ({"budget": 100}, "arguments.budget is out of bounds: 100"),
        ({"insured": 1}, "arguments.insured is not boolean: 1"),
        ({"stops": []}, "the length of arguments.stops is out of bounds: 0"),
        ({"stops": [{"city": "Oslo"}, {"city": "Bonn"}]}, "arguments.stops[1].city is none of"),
        ({"stops": [{}, {}]}, "arguments.stops[0].city is missing"),
        ({"{": ""}, "arguments.{ is not a field"),
        ({"traveller": None}, "arguments.traveller is not object: None"),
        (
            {"traveller": {"name": "A name too long", "contact": {"phone": None}}},
            "the length of arguments.traveller.name is out of bounds: 15",
        ),
    ],
)
def test_a_misfit_is_named_by_its_place(change: dict[str, Any], misfit: str) -> None:
    assert (find_misfit(fill(TRIP.schema) | change, TRIP.schema) or "").startswith(misfit)


@pytest.mark.parametrize(
    ("value", "fits"), [(2, True), (2.0, True), (2.5, False), ("2", False), (True, False)]
)
def test_an_integer_is_whole_and_no_truth_value(value: Any, fits: bool) -> None:
    assert (find_misfit(value, {"type": "integer"}) is None) == fits
    assert (find_misfit(value, {"enum": [1, 2]}) is None) == fits


def test_null_fits_where_it_is_named() -> None:
    assert find_misfit(None, {"type": ["string", "null"]}) is None
    assert find_misfit(None, {"enum": ["C", None]}) is None
    assert find_misfit(None, {"type": "string"}) is not None
