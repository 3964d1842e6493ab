"""Records are frozen and strict, and a faulty file is reported whole."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.records import Record, read_record


class Wheel(Record):
    size: int


class Car(Record):
    name: str
    wheels: tuple[Wheel, ...]


def test_a_record_cannot_be_changed() -> None:
    car = Car(name="a", wheels=())
    with pytest.raises(ValidationError):
        setattr(car, "name", "b")  # noqa: B010 a plain assignment is what mypy refuses already


def test_a_record_loads_back_from_its_json_identically(tmp_path: Path) -> None:
    car = Car(name="a", wheels=(Wheel(size=17),))
    path = tmp_path / "car.json"
    path.write_text(car.to_json())
    assert read_record(path, Car, hint="make one") == car


def test_all_faults_of_a_file_are_named_at_once_with_their_key_paths(tmp_path: Path) -> None:
    path = tmp_path / "car.json"
    path.write_text('{"wheels": [{"size": 17}, {"size": "big"}], "colour": "red"}')
    with pytest.raises(InvalidInputError) as caught:
        read_record(path, Car, hint="make one")
    faults = {detail.partition(":")[0] for detail in caught.value.details}
    assert faults == {"name", "wheels[1].size", "colour"}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\xff\x00", "not a Car")]
)
def test_a_file_that_is_missing_or_no_json_is_an_error_with_the_hint_how_to_make_it(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "car.json"
    if content:
        path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_record(path, Car, hint="make one")
    assert caught.value.hint == "make one"
