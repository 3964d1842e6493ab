"""`HeldModel`: a model as a machine has it, checked, and where its files lie (`fleet weights`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from slipstream.errors import InvalidInputError
from slipstream.fleet.far_side.this_machine import digest_weights
from slipstream.records import Record
from slipstream.serving.weights.lock import read_lock
from slipstream.serving.weights.obtaining import obtain
from slipstream.serving.weights.progress import Report
from slipstream.user_folders import model_cache


class HeldModel(Record):
    """What a machine has of a model; `tree` is the folder that makes it whole elsewhere."""

    schema_version: Literal[1] = 1
    name: str
    tree: str = Field(pattern=r"^/[^\x00-\x1f]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int


def hold_model(
    name: str,
    revision: str | None,
    environment: Mapping[str, str],
    report: Report,
    *,
    with_code: bool,
) -> HeldModel:
    """Have a model here, fetched if need be, and every file of it hashed."""
    model = obtain(
        name, revision=revision, environment=environment, report=report, with_code=with_code
    )
    lock = read_lock(model.lock)
    if lock is None:
        raise InvalidInputError(f"there is no lock {model.lock}", hint="slipstream doctor")
    return HeldModel(
        name=name,
        tree=str(find_tree(name, environment) if model.commit else model.folder),
        sha256=digest_weights(lock),
        size_bytes=model.size_bytes,
    )


def find_tree(name: str, environment: Mapping[str, str]) -> Path:
    """Return where a model's files lie on this machine, or will."""
    folder = Path(name).expanduser()
    if folder.is_absolute():
        return folder
    return model_cache(environment).absolute() / f"models--{name.replace('/', '--')}"
