"""The base of what crosses a stage or a file, and the one way such a file is read.

A record is frozen, refuses unknown keys and says which schema it was written in. A faulty
file is reported whole: every fault with its key path, in one error.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from slipstream.errors import InvalidInputError


class Record(BaseModel):
    """A frozen value that loads back from its JSON identically."""

    # Built when first used: a command pays only for the records that it meets.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_json(self) -> str:
        """Return the one JSON form that is printed, saved and compared."""
        return self.model_dump_json(indent=2)


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, kind: type[AnyRecord], *, hint: str) -> AnyRecord:
    """Read a record from a JSON file; `hint` says how such a file is made."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read {path}: {fault.strerror or fault}", hint=hint
        ) from fault
    except ValidationError as fault:
        raise InvalidInputError(
            f"{path} is not a {kind.__name__} that this version reads",
            details=describe_faults(fault),
            hint=hint,
        ) from fault


def read_line(line: bytes, kind: type[AnyRecord], file: str, *, hint: str) -> AnyRecord | None:
    """Read a record from a line of a log, None if the line was cut off."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as fault:
        if fault.errors()[0]["type"] == "json_invalid":
            return None
        what = f"{file} has a line that this version does not read"
        raise InvalidInputError(what, details=describe_faults(fault), hint=hint) from fault


def read_toml(path: Path, kind: type[AnyRecord], *, called: str, hint: str) -> AnyRecord:
    """Read a record that people write as TOML; a misspelt key is reported with the nearest name."""
    try:
        return kind.model_validate(tomllib.loads(path.read_text()))
    except OSError as fault:
        what = f"cannot read {path}: {fault.strerror or fault}"
        raise InvalidInputError(what, hint=hint) from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise InvalidInputError(f"{path} is not TOML: {fault}", hint=hint) from fault
    except ValidationError as fault:
        what = f"{path} has invalid {called}"
        raise InvalidInputError(what, details=describe_faults(fault, kind), hint=hint) from fault


def describe_faults(fault: ValidationError, kind: type[Record] | None = None) -> tuple[str, ...]:
    """Turn what pydantic found into lines of `key.path[0]: what is wrong`.

    With the kind of record, a key that it does not have is answered with those that it has.
    """
    return tuple(
        _describe_fault(entry["loc"], entry["msg"])
        + (_find_meant(kind, entry["loc"]) if kind and entry["type"] == "extra_forbidden" else "")
        for entry in fault.errors()
    )


def _find_meant(kind: Any, steps: tuple[int | str, ...]) -> str:
    """Find the key that is spelt most like one that is none, else all that there are."""
    for step in steps[:-1]:
        if isinstance(step, int):  # A list of tables.
            kind = get_args(kind)[0]
        elif get_origin(kind) is dict:  # A table of tables: the step is a name, not a field.
            kind = get_args(kind)[-1]
        elif model := _find_model(kind):
            kind = model.model_fields[str(step)].annotation
    model = _find_model(kind)
    known = sorted(model.model_fields) if model else []
    if close := difflib.get_close_matches(str(steps[-1]), known, n=1):
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(known)}" if known else ""


def _find_model(kind: Any) -> type[BaseModel] | None:
    """Return the record that an annotation such as `Router | None` is of."""
    kinds = [one for one in (kind, *get_args(kind)) if isinstance(one, type)]
    return next((one for one in kinds if issubclass(one, BaseModel)), None)


def _describe_fault(steps: tuple[int | str, ...], message: str) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return f"{path}: {message}" if path else message
