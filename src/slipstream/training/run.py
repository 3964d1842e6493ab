"""`TrainRun`: settings, stages and results of a training run; one folder per run.

The folder is the run. Every stage writes its own file and then its line in run.json, so the
same command goes on after the last stage that is whole, and a stage after its last row.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.records import Record, read_record
from slipstream.steering.drafts import Drafts

Method = Literal["dflash", "eagle3", "dflash2", "dspark"]
METHODS: tuple[Method, ...] = get_args(Method)
StageName = Literal["prompts", "responses", "states", "training", "acceptance", "export"]
STAGES: tuple[StageName, ...] = get_args(StageName)
Figures = dict[str, int | float | str]


class DrafterDesign(Record):
    """The shape of a drafter; layer ids count hidden states, and 0 is the embedding.

    A block is the anchor and its draft tokens, whether they come in one pass or one after another.
    """

    method: Method = "dflash"
    layers: int
    intermediate_size: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int | None

    @property
    def draft_tokens(self) -> int:
        """Return how many tokens a block drafts: DSpark also drafts from the anchor's slot."""
        return self.block_size if self.method == "dspark" else self.block_size - 1


class Schedule(Record):
    """The number of steps, the learning rate and the batch shape."""

    steps: int
    learning_rate: float = 1e-3
    warm_up: float = 0.02
    rows: int = 4
    context: int = 512
    anchors: int = 48
    seed: int = 0
    evaluate_every: int = 500
    compiled: bool = True

    def rate_at(self, step: int) -> float:
        """Return the learning rate: a linear rise, then half a cosine down to a twentieth."""
        rise = max(1, round(self.steps * self.warm_up))
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        share = (step - rise) / max(1, self.steps - rise)
        return self.learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)


class TrainOptions(Record):
    """The user's options; None leaves a setting to us."""

    target: str
    prompts: tuple[str, ...]
    method: Method | None = None
    layers: int | None = None
    block_size: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    intermediate_size: int | None = None
    from_drafter: str | None = None
    steps: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    max_tokens: int = 384
    thinking: bool | None = None
    held_out_share: float = 0.05
    evaluated_per_kind: int = 24


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
    evaluated_per_kind: int


class CurvePoint(Record):
    """Held-out acceptance at one step of the training, by kind."""

    step: int
    seconds: float
    loss: float
    uniform: dict[str, float]
    walked: dict[str, float]


class StageRecord(Record):
    name: StageName
    seconds: float
    figures: Figures


class Evaluation(Record):
    """Held-out acceptance of one kind of prompts: predicted from text, and served."""

    prompts: int
    uniform: Drafts | None = None
    walked: Drafts | None = None
    served: Drafts | None = None

    @field_validator("uniform", "walked", "served", mode="before")
    @classmethod
    def take_shares_as_counts(cls, figure: Any) -> Any:
        """Read what 0.1.0 kept: the share of drafts that held to each position."""
        if not isinstance(figure, dict) or "by_position" not in figure:
            return figure
        drafts = figure["drafts"]
        accepted = [round(share * drafts) for share in figure["by_position"]]
        return {"drafts": drafts, "drafted": drafts * len(accepted), "accepted": accepted}

    @property
    def by_position(self) -> tuple[float, ...]:
        """Return the share of drafts that held to each position, served if it was."""
        best = self.served or self.walked
        return () if best is None else best.by_position


class TrainRun(Record):
    schema_version: Literal[2] = 2
    command: str
    settings: TrainSettings
    decisions: tuple[Decision, ...]
    versions: dict[str, str]
    stages: tuple[StageRecord, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    evaluated: dict[str, Evaluation] = Field(default_factory=dict)

    def find(self, name: StageName) -> StageRecord | None:
        return next((stage for stage in self.stages if stage.name == name), None)


class TrainFolder:
    """The files of a run: its record, what each stage leaves, and the engine's log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "run.json"
        self.prompts = path / "prompts.jsonl"
        self.responses = path / "responses.jsonl"
        self.states = path / "states.bin"
        self.checkpoint = path / "checkpoint.pt"
        self.drafter = path / "drafter"
        self.engine_log = path / "engine.log"

    def read(self) -> TrainRun | None:
        """Read the record, if the run was begun."""
        if not self.record.exists():
            return None
        return read_record(self.record, TrainRun, hint="name another folder with --run")

    def write(self, run: TrainRun) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.record, run.to_json().encode())
        except OSError as fault:
            raise InvalidInputError(
                f"cannot store a run in {self.path}: {fault.strerror or fault}",
                hint="name another folder with --run",
            ) from fault

    def begin(self, fresh: TrainRun) -> TrainRun:
        """Continue a run with the same settings, or begin it."""
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


def tokens_per_step(by_kind: Mapping[str, Drafts]) -> dict[str, float]:
    """Return the mean acceptance length of every kind that has drafts."""
    rates = {kind: drafts.tokens_per_step for kind, drafts in by_kind.items()}
    return {kind: rate for kind, rate in rates.items() if rate is not None}


def name_run(settings: TrainSettings) -> str:
    """Return the name of a run, by its target and all of its settings."""
    digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:8]
    return f"{Path(settings.target).name}-{digest}"


def _differences(old: Record, new: Record) -> Iterator[str]:
    """Describe every value that differs, under the path of its keys."""
    for name in type(old).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Record):
            yield from (f"{name}.{line}" for line in _differences(before, after))
        elif before != after:
            yield f"{name}: {before} then, {after} now"
