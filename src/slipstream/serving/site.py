"""What `doctor` examines, and the form of its results."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from slipstream.hardware import Host
from slipstream.records import Record
from slipstream.serving.advisories import Lookup
from slipstream.serving.run import Run, RunFolder

Verdict = Literal["ok", "warning", "fault"]


class Check(Record):
    """The result of one check; one that is not ok has a hint."""

    subject: str
    verdict: Verdict
    message: str
    details: tuple[str, ...] = ()
    hint: str | None = None


class OtherLoad(Protocol):
    """What other processes use of this machine, as measuring's `MachineLoad` has it."""

    cores: int
    other_cpu_share: float
    busiest: str | None

    def describe(self, *, named: bool = True) -> str:
        """Return what disturbs, or nothing on a quiet machine; not `named`, without programs."""


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that is examined, the newest run first."""

    host: Host
    environment: Mapping[str, str]
    user: int
    runs: tuple[tuple[RunFolder, Run], ...]
    runs_root: Path
    now: datetime
    lookup: Lookup | None = None
    load: OtherLoad | None = None
    proc: Path = Path("/proc")
