"""`Patch`: what is changed in vLLM, in which source, why, and until when."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One patch; `change` gets the module if its source is the known one."""

    name: str
    since: tuple[int, int]
    before: tuple[int, int]
    module: str
    touches: str
    source_sha256: str
    symptom: str
    proof: str
    upstream: str
    drop_when: str
    change: Callable[[Any], None]
