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
from slipstream.training.prompts import Conversation
from slipstream.training.run import TrainRun, TrainSettings
from slipstream.training.states import row_bytes

MEASURED_TARGET = 135e6
MEASURED_DRAFTER = 9.6e6
RESPONSE_TOKENS_PER_S = 600
STATE_TOKENS_PER_S = 1200
STEP_SECONDS = 0.5
MEASURED_STEP_TOKENS = 4 * 48 * 8
CHARACTERS_A_TOKEN = 4
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
    """The estimate of a run."""

    schema_version: Literal[1] = 1
    settings: TrainSettings
    decisions: tuple[Decision, ...]
    folder: str
    free_bytes: int
    stages: tuple[StageEstimate, ...]

    @classmethod
    def make(
        cls,
        run: TrainRun,
        target: Checkpoint,
        conversations: Sequence[Conversation],
        host: Host,
        folder: Path,
    ) -> "TrainEstimate":
        """Estimate a run that would be kept in `folder`."""
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        return cls(
            settings=run.settings,
            decisions=run.decisions,
            folder=str(folder),
            free_bytes=shutil.disk_usage(there).free,
            stages=estimate_stages(
                run.settings, target, conversations, on_cpu=not host.accelerators
            ),
        )


def estimate_stages(
    settings: TrainSettings,
    target: Checkpoint,
    conversations: Sequence[Conversation],
    *,
    on_cpu: bool,
) -> tuple[StageEstimate, ...]:
    """Estimate every stage."""
    design, schedule = settings.design, settings.schedule
    characters = sum(len(turn.content) for row in conversations for turn in row.messages)
    prompt_tokens = characters // CHARACTERS_A_TOKEN + TEMPLATE_TOKENS * len(conversations)
    tokens = round(settings.max_tokens * RESPONSE_SHARE) * len(conversations)
    states = (prompt_tokens + tokens) * row_bytes(
        len(design.target_layer_ids), target.hidden_size or 0
    )
    weights = count_weights(settings, target)
    size = (target.weights.total_bytes / 2 if target.weights else MEASURED_TARGET) / MEASURED_TARGET
    step = schedule.rows * schedule.anchors * design.block_size / MEASURED_STEP_TOKENS
    judged = settings.judged_a_kind * len({row.kind for row in conversations})

    def time(seconds: float) -> float | None:
        return seconds if on_cpu else None

    return (
        StageEstimate(
            name="prompts",
            work=f"{len(conversations)} conversations",
            disk_bytes=characters,
            seconds=0,
        ),
        StageEstimate(
            name="responses",
            work=f"about {tokens} tokens, at most {settings.max_tokens} a response",
            disk_bytes=tokens * 6,
            seconds=time(tokens / RESPONSE_TOKENS_PER_S * size),
        ),
        StageEstimate(
            name="states",
            work=f"{len(design.target_layer_ids)} layers of {prompt_tokens + tokens} tokens",
            disk_bytes=states,
            seconds=time((prompt_tokens + tokens) / STATE_TOKENS_PER_S * size),
        ),
        StageEstimate(
            name="training",
            work=f"{schedule.steps} steps of {schedule.rows * schedule.anchors} blocks, "
            f"{weights / 1e6:.1f} million weights",
            disk_bytes=weights * 12,
            seconds=time(schedule.steps * STEP_SECONDS * step * weights / MEASURED_DRAFTER),
        ),
        StageEstimate(
            name="acceptance",
            work=f"at most {judged} held-out prompts, offline and served",
            disk_bytes=0,
            seconds=time(30 + judged * settings.max_tokens * RESPONSE_SHARE / 30 * size),
        ),
        StageEstimate(
            name="export", work="weights, config, card", disk_bytes=weights * 2, seconds=0
        ),
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
