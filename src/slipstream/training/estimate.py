"""The time, tokens and disk space of a run, estimated before it begins.

The rates were measured on two threads of a Xeon with AMX, for a target of 135 million weights
and a drafter of 9.6 million; they are scaled by size. On a GPU nothing was measured, and the
time is left unknown.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.hardware import Host
from slipstream.planning.plan import Decision
from slipstream.records import Record
from slipstream.training.cpu.batches import row_bytes
from slipstream.training.prompts import Conversation
from slipstream.training.run import StageName, TrainRun, TrainSettings

MEASURED_TARGET = 135e6
MEASURED_DRAFTER = 9.6e6
RESPONSE_TOKENS_PER_S = 600
STATE_TOKENS_PER_S = 1200
SERVED_TOKENS_PER_S = 30
STEP_SECONDS = 0.5
MEASURED_STEP_TOKENS = 4 * 48 * 8
CHARACTERS_PER_TOKEN = 4
TEMPLATE_TOKENS = 30
# Of the tokens that responses may have, the share that they had.
RESPONSE_SHARE = 0.7


class StageEstimate(Record):
    """The estimate of one stage; None is unknown."""

    name: str
    work: str
    disk_bytes: int
    seconds: float | None


class TrainEstimate(Record):
    schema_version: Literal[1] = 1
    settings: TrainSettings
    decisions: tuple[Decision, ...]
    folder: str
    free_bytes: int
    stages: tuple[StageEstimate, ...]


def estimate_run(
    run: TrainRun,
    target: Checkpoint,
    conversations: Sequence[Conversation],
    host: Host,
    folder: Path,
) -> TrainEstimate:
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    stages = (
        StageEstimate(name=name, work=work, disk_bytes=disk_bytes, seconds=seconds)
        for name, work, disk_bytes, seconds in _estimate_stages(run.settings, target, conversations)
    )
    unknown = {"seconds": None} if host.accelerators else {}
    return TrainEstimate(
        settings=run.settings,
        decisions=run.decisions,
        folder=str(folder),
        free_bytes=shutil.disk_usage(there).free,
        stages=tuple(one.model_copy(update=unknown if one.seconds else {}) for one in stages),
    )


def _estimate_stages(
    settings: TrainSettings, target: Checkpoint, conversations: Sequence[Conversation]
) -> tuple[tuple[StageName, str, int, float], ...]:
    """Return every stage's name, work, bytes on disk and seconds on a CPU."""
    design, schedule, longest = settings.design, settings.schedule, settings.max_tokens
    characters = sum(row.characters for row in conversations)
    tokens = round(longest * RESPONSE_SHARE) * len(conversations)
    layers = len(design.target_layer_ids)
    read = tokens + characters // CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS * len(conversations)
    weights = count_weights(settings, target)
    size = (target.weights.total_bytes / 2 if target.weights else MEASURED_TARGET) / MEASURED_TARGET
    blocks = schedule.rows * schedule.anchors
    step = STEP_SECONDS * blocks * design.block_size / MEASURED_STEP_TOKENS
    evaluated = settings.evaluated_per_kind * len({row.kind for row in conversations})
    return (
        ("prompts", f"{len(conversations)} conversations", characters, 0),
        (
            "responses",
            f"about {tokens} tokens, at most {longest} a response",
            tokens * 6,
            tokens / RESPONSE_TOKENS_PER_S * size,
        ),
        (
            "states",
            f"{layers} layers of {read} tokens",
            read * row_bytes(layers, target.hidden_size or 0),
            read / STATE_TOKENS_PER_S * size,
        ),
        (
            "training",
            f"{schedule.steps} steps of {blocks} blocks, {weights / 1e6:.1f} million weights",
            weights * 8,
            schedule.steps * step * weights / MEASURED_DRAFTER,
        ),
        (
            "acceptance",
            f"at most {evaluated} held-out prompts, offline and served",
            0,
            30 + evaluated * longest * RESPONSE_SHARE / SERVED_TOKENS_PER_S * size,
        ),
        ("export", "weights, config, card", weights * 2, 0),
    )


def count_weights(settings: TrainSettings, target: Checkpoint) -> int:
    """Count the weights that are trained, norms left aside."""
    hidden = target.hidden_size or 0
    part = next(iter(target.layers or ()), None)
    head = (part.head_size if part else None) or 0
    queries = (target.attention_heads or 0) * head
    keys = ((part.key_value_heads if part else None) or 0) * head
    layer = hidden * (2 * queries + 2 * keys + 3 * settings.design.intermediate_size)
    if settings.design.method == "eagle3":  # A token's embedding beside each state.
        layer += hidden * (queries + 2 * keys)
    features = hidden * hidden * len(settings.design.target_layer_ids)
    return settings.design.layers * layer + features
