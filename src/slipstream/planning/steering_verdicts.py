"""What `tune` found about steering and adaptive verification on this machine, kept for later plans.

A verdict holds for what was measured: the drafter and its draft length are part of its key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from slipstream.atomic_files import write_atomically
from slipstream.planning.settings import Choice, EngineSettings
from slipstream.records import Record, read_record
from slipstream.user_folders import config_folder

if TYPE_CHECKING:
    from slipstream.planning.plan import LaunchPlan

Way = Literal["steered", "adaptive"]


class VerdictKey(Record):
    """What decides whether a verdict holds for a plan."""

    way: Way
    target: str
    drafter: str | None
    draft_length: int
    machine: str | None
    accelerators: int
    engine_version: str


class SteeringVerdict(Record):
    """Whether a way to follow the load paid, and the figures."""

    key: VerdictKey
    pays: bool
    because: str


class SteeringVerdicts(Record):
    """The file of all of them."""

    schema_version: Literal[1] = 1
    verdicts: tuple[SteeringVerdict, ...] = ()

    def find(self, key: VerdictKey) -> Choice[bool] | None:
        """Return what was found for such a plan, None if nothing was measured."""
        found = next((one for one in self.verdicts if one.key == key), None)
        return None if found is None else Choice(found.pays, "measured", found.because)


def make_key(
    way: Way, settings: EngineSettings, target: str, machine: str | None, engine_version: str
) -> VerdictKey:
    drafter = settings.speculation.drafter if settings.speculation else None
    return VerdictKey(
        way=way,
        target=target,
        drafter=drafter.value if drafter else None,
        draft_length=settings.draft_length,
        machine=machine,
        accelerators=settings.shards,
        engine_version=engine_version,
    )


def keep_verdict(
    way: Way, plan: "LaunchPlan", environment: Mapping[str, str], *, pays: bool, because: str
) -> None:
    """Keep what a trial said about a plan with its draft length."""
    file = _find_file(environment)
    key = make_key(way, plan.settings, plan.target, plan.machine, plan.engine_version)
    verdict = SteeringVerdict(key=key, pays=pays, because=because)
    others = tuple(one for one in read_verdicts(environment).verdicts if one.key != key)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, SteeringVerdicts(verdicts=(*others, verdict)).to_json().encode())


def read_verdicts(environment: Mapping[str, str]) -> SteeringVerdicts:
    file = _find_file(environment)
    if not file.exists():
        return SteeringVerdicts()
    return read_record(file, SteeringVerdicts, hint=f"rm {file}, then slipstream tune TARGET")


def _find_file(environment: Mapping[str, str]) -> Path:
    return config_folder(environment) / "steering.json"
