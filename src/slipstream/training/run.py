"""`TrainRun`: settings, stages and results of a training run; one folder per run.

The folder is the run. Every stage writes its own file and then its line in run.json, so the
same command goes on after the last stage that is whole, and a stage after its last row.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.records import Record, read_record
from slipstream.training.acceptance import DrafterAcceptance
from slipstream.training.served import ServedAcceptance
from slipstream.training.settings import DrafterDesign, Schedule

StageName = Literal["prompts", "responses", "states", "training", "acceptance", "export"]
STAGES: tuple[StageName, ...] = (
    "prompts",
    "responses",
    "states",
    "training",
    "acceptance",
    "export",
)


class TrainSettings(Record):
    """Everything that determines the result of a run."""

    target: str
    prompts: tuple[str, ...]
    prompts_sha256: str
    from_drafter: str | None = None
    design: DrafterDesign
    schedule: Schedule
    max_tokens: int
    thinking: bool | None = None
    held_out_share: float
    judged_a_kind: int


class CurvePoint(Record):
    """Held-out acceptance at one step of the training, by kind."""

    step: int
    seconds: float
    loss: float
    uniform: dict[str, float]
    walked: dict[str, float]


class StageRecord(Record):
    """One finished stage."""

    name: StageName
    seconds: float
    figures: dict[str, int | float | str]


class Judged(Record):
    """Held-out acceptance of one kind of prompts: predicted from text, and served."""

    prompts: int
    uniform: DrafterAcceptance | None = None
    walked: DrafterAcceptance | None = None
    served: ServedAcceptance | None = None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Return the share of drafts that held to each position, served if it was."""
        best = self.served or self.walked
        return () if best is None else best.by_position


class TrainRun(Record):
    """The current state of a run."""

    schema_version: Literal[1] = 1
    command: str
    settings: TrainSettings
    decisions: tuple[Decision, ...]
    versions: dict[str, str]
    stages: tuple[StageRecord, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    judged: dict[str, Judged] = Field(default_factory=dict)

    def find(self, name: StageName) -> StageRecord | None:
        """Return a stage's record, if it is done."""
        return next((stage for stage in self.stages if stage.name == name), None)


@dataclass(frozen=True, slots=True)
class TrainFolder:
    """The files of a run."""

    path: Path

    @property
    def record(self) -> Path:
        """The file of the `TrainRun`."""
        return self.path / "run.json"

    @property
    def prompts(self) -> Path:
        """The conversations, split."""
        return self.path / "prompts.jsonl"

    @property
    def responses(self) -> Path:
        """The target's answers."""
        return self.path / "responses.jsonl"

    @property
    def states(self) -> Path:
        """The target's hidden states."""
        return self.path / "states.bin"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint that training continues from."""
        return self.path / "checkpoint.pt"

    @property
    def drafter(self) -> Path:
        """The resulting drafter."""
        return self.path / "drafter"

    @property
    def engine_log(self) -> Path:
        """The engine's log."""
        return self.path / "engine.log"

    def read(self) -> TrainRun | None:
        """Read the record, if the run was begun."""
        if not self.record.exists():
            return None
        return read_record(self.record, TrainRun, hint=f"remove {self.path}, and train again")

    def write(self, run: TrainRun) -> None:
        """Save the record."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.record, run.to_json().encode())
        except OSError as fault:
            raise InvalidInputError(
                f"cannot keep a run in {self.path}: {fault.strerror or fault}",
                hint="name another folder with --run",
            ) from fault

    def begin(self, fresh: TrainRun) -> TrainRun:
        """Continue a run with the same settings, or begin it."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(
                f"{self.path} is no folder", hint="name another folder with --run"
            )
        found = self.read()
        if found is None:
            self.write(fresh)
            return fresh
        if found.settings != fresh.settings:
            raise InvalidInputError(
                f"{self.path} holds a run with other settings",
                details=tuple(_differences(found.settings, fresh.settings)),
                hint="name another folder with --run",
            )
        return found


def name_run(settings: TrainSettings) -> str:
    """Return the name of a run, by its target and all of its settings."""
    digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:8]
    return f"{Path(settings.target).name}-{digest}"


def _differences(old: TrainSettings, new: TrainSettings) -> list[str]:
    before, after = _flatten(old.model_dump()), _flatten(new.model_dump())
    return [
        f"{key}: {before[key]} then, {after[key]} now"
        for key in before
        if before[key] != after[key]
    ]


def _flatten(table: dict[str, Any], path: str = "") -> dict[str, object]:
    """Return every value under the path of its keys."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        name = f"{path}{key}"
        flat |= _flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
