"""The base of what crosses a stage or a file, and the one way such a file is read.

A record is frozen, refuses unknown keys and says which schema it was written in. A faulty
file is reported whole: every fault with its key path, in one error.
"""

from pathlib import Path
from typing import TypeVar

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


def describe_faults(fault: ValidationError) -> tuple[str, ...]:
    """Turn what pydantic found into lines of `key.path[0]: what is wrong`."""
    return tuple(_describe_fault(entry["loc"], entry["msg"]) for entry in fault.errors())


def _describe_fault(steps: tuple[int | str, ...], message: str) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return f"{path}: {message}" if path else message
