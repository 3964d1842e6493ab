"""From the options to a run that can begin: everything decided and checked."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.reading import read_checkpoint
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.planning.settings import Source
from slipstream.records import Record
from slipstream.serving.weights.obtaining import obtain_settings
from slipstream.training import preflight
from slipstream.training.design import Asked, decide_design, design_of, require_valid
from slipstream.training.prompts import Conversation, read_prompts
from slipstream.training.run import TrainRun, TrainSettings
from slipstream.training.settings import DrafterDesign, Method, Schedule

STEPS, COMPILED_FROM = 8000, 500
NEW_RATE, WARM_RATE = 1e-3, 3e-4
WHY_METHOD = "drafts a block in one pass"

Value = TypeVar("Value", int, float, Method)


class Reason(TypedDict):
    """The source and reason of a decision."""

    source: Source
    because: str


class Order(Record):
    """The user's options; None leaves a setting to us."""

    target: str
    method: Method | None = None
    prompts: tuple[str, ...]
    from_drafter: str | None
    asked: Asked
    steps: int | None
    learning_rate: float | None
    max_tokens: int
    thinking: bool | None
    held_out_share: float
    judged_a_kind: int
    seed: int


def prepare(
    order: Order, target: Checkpoint, *, command: str, on_gpu: bool
) -> tuple[TrainRun, tuple[Conversation, ...]]:
    """Decide the design and the schedule, and raise if the run cannot succeed."""
    preflight.require_parts()
    usual: Method = "dflash"
    method, why_method = _choose(order.method, usual, WHY_METHOD)
    preflight.require_method(method, on_gpu=on_gpu, from_drafter=order.from_drafter)
    preflight.require_target(target)
    conversations, _ = read_prompts(
        [Path(file) for file in order.prompts],
        held_out_share=order.held_out_share,
        seed=order.seed,
    )
    require_both_sides(conversations)
    design, decisions = _settle_design(order, target, method)
    require_valid(design, target)
    schedule, pace = _settle_schedule(order)
    settings = TrainSettings(
        target=order.target,
        prompts=order.prompts,
        prompts_sha256=_hash(conversations),
        from_drafter=order.from_drafter,
        design=design,
        schedule=schedule,
        max_tokens=order.max_tokens,
        thinking=order.thinking,
        held_out_share=order.held_out_share,
        judged_a_kind=order.judged_a_kind,
    )
    run = TrainRun(
        command=command,
        settings=settings,
        decisions=(
            Decision(flag="--method", value=method, **why_method),
            *decisions,
            *pace,
        ),
        versions=preflight.read_versions(),
    )
    return run, conversations


def require_both_sides(conversations: Sequence[Conversation]) -> None:
    """Refuse prompts of which none is left to judge by, or none to train on."""
    held_out = sum(row.held_out for row in conversations)
    if held_out in (0, len(conversations)):
        raise InvalidInputError(
            f"of {len(conversations)} prompts {held_out} would be held out to judge the drafter by",
            hint="give more prompts of different beginnings, or another share with --held-out",
        )


def _settle_design(
    order: Order, target: Checkpoint, method: Method
) -> tuple[DrafterDesign, tuple[Decision, ...]]:
    folder = _fetch_settings(order.target, target)
    vocabulary = preflight.read_vocabulary(folder, target.vocabulary_size or 0)
    if order.from_drafter is None:
        inner = order.asked.intermediate_size or preflight.read_inner_size(folder)
        return decide_design(target, inner, vocabulary, order.asked, method)
    if order.asked != Asked():
        raise InvalidInputError(
            "a warm start keeps the design of its drafter",
            hint="leave out --layers, --block-size, --layer-ids, --mask-token-id and "
            "--intermediate-size, or leave out --from",
        )
    drafter = read_checkpoint(order.from_drafter, tokenizer=False)
    preflight.require_fit(target, drafter)
    inner = preflight.read_inner_size(_fetch_settings(order.from_drafter, drafter))
    because = "a warm start keeps the design of its drafter"
    decision = Decision(flag="--from", value=order.from_drafter, source="user", because=because)
    return design_of(drafter, inner), (decision,)


def _fetch_settings(name: str, checkpoint: Checkpoint) -> Path:
    return obtain_settings(name, revision=checkpoint.revision, environment=os.environ)


def _settle_schedule(order: Order) -> tuple[Schedule, tuple[Decision, ...]]:
    steps, why_steps = _choose(order.steps, STEPS, "an hour on two threads with AMX")
    warm = order.from_drafter is not None
    usual = (WARM_RATE, "gentle: a warm start") if warm else (NEW_RATE, "a new drafter")
    rate, why_rate = _choose(order.learning_rate, *usual)
    schedule = Schedule(
        steps=steps,
        learning_rate=rate,
        seed=order.seed,
        judge_every=max(1, min(500, steps // 4)),
        # A compiled step takes two thirds of the time, and a minute to compile.
        compiled=steps >= COMPILED_FROM,
    )
    return schedule, (
        Decision(flag="--steps", value=str(steps), **why_steps),
        Decision(flag="--learning-rate", value=f"{rate:g}", **why_rate),
    )


def _choose(wish: Value | None, usual: Value, because: str) -> tuple[Value, Reason]:
    if wish is None:
        return usual, {"source": "default", "because": because}
    return wish, {"source": "user", "because": "asked for"}


def _hash(conversations: Sequence[Conversation]) -> str:
    """Hash what is trained on, so that a run is not taken up with other prompts."""
    names = "".join(sorted(row.id + row.kind for row in conversations))
    return hashlib.sha256(names.encode()).hexdigest()
