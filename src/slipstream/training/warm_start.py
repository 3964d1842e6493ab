"""Prepares a drafter for further training: in speculators' layout, for this target.

speculators converts z-lab's layout itself, but some things it loses without a word: an id of
the last layer, weights that it has no place for, and that full attention looks both ways,
which vLLM 0.32 then takes for causal (https://github.com/vllm-project/vllm/pull/56692). The
first two are refused here, the third is put right.
"""

import importlib
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipstream.atomic_files import make_folder_once, write_atomically
from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.files import open_files
from slipstream.checkpoints.pairing import pair
from slipstream.checkpoints.reading import read_checkpoint
from slipstream.errors import InvalidInputError


def convert_drafter(source: Path, target: Path, folder: Path) -> Path:
    """Return `folder` with the drafter of `source` in it, made for `target`; both are folders."""
    drafter = read_checkpoint(str(source), tokenizer=False)
    draft = require_trainable(drafter, read_checkpoint(str(target), tokenizer=False))

    def build(partial: Path) -> None:
        if draft.layout == "speculators":
            leave_out = shutil.ignore_patterns("*_state_dict.pt")
            shutil.copytree(source, partial, ignore=leave_out, dirs_exist_ok=True)
        else:
            _convert(source, target, draft, partial)
            require_same_tensors(source, partial)
        _settle(partial / "config.json", target, non_causal=not _is_causal(drafter, draft))

    return make_folder_once(folder, build)


def require_trainable(drafter: Checkpoint, target: Checkpoint) -> DraftPart:
    """Refuse a drafter of another target or method, and what speculators would train as another."""
    draft = drafter.draft
    if draft is None or draft.family != "dflash":
        raise InvalidInputError(
            f"{drafter.name} is not a DFlash drafter and cannot be trained further",
            hint=f"slipstream models {drafter.name}",
        )
    misfits = [fault for fault in pair(target, drafter).faults if fault.verdict == "refuse"]
    if faults := (*(fault.message for fault in misfits), *_find_faults(drafter, draft, target)):
        raise InvalidInputError(
            f"{drafter.name} cannot be trained further for {target.name}",
            details=faults,
            hint="train a new drafter: leave out --from",
        )
    return draft


def require_same_tensors(source: Path, converted: Path) -> None:
    """Refuse a conversion that dropped, cut or renamed what the drafter holds."""
    shapes = [
        {tensor.name: tensor.shape for tensor in open_files(str(folder)).read_tensors() or ()}
        for folder in (source, converted)
    ]
    if lost := sorted(shapes[0].items() - shapes[1].items()):
        raise InvalidInputError(
            f"speculators' layout has no place for {len(lost)} of the tensors in {source}",
            details=tuple(f"{name}: {list(shape)}" for name, shape in lost),
            hint="train a new drafter: leave out --from",
        )


def _find_faults(drafter: Checkpoint, draft: DraftPart, target: Checkpoint) -> Iterator[str]:
    last = (target.layer_count or 0) - 1
    outputs = draft.layer_outputs
    if outputs is None:
        yield "it does not state which layers of the target it reads"
    elif max(outputs) >= last:
        yield (
            f"it reads the output of target layer {max(outputs)}; speculators keeps that of the "
            f"last one, {last}, for the loss"
        )
    if draft.forced_sliding:
        yield "dflash_config.use_swa gives its layers windows, which speculators does not read"
    full = any(part.kind != "sliding" for part in drafter.layers or ())
    if full and _is_causal(drafter, draft):
        yield (
            "it is causal and has full attention, which speculators trains non-causal "
            "and vLLM 0.32 would then serve causal"
        )


def _is_causal(drafter: Checkpoint, draft: DraftPart) -> bool:
    """Return how blocks are attended to: as stated, and else only where layers slide."""
    if draft.layout == "speculators" and not drafter.has_sliding_windows:
        return False  # What its config says is about sliding layers alone.
    return next(iter(draft.causal_statements.values()), drafter.has_sliding_windows)


def _convert(source: Path, target: Path, draft: DraftPart, folder: Path) -> None:
    """Convert a drafter with speculators, silently; explicit ids are kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converter = import_quietly("speculators.convert.dflash.converter").DFlashConverter()
        states = [layer + 1 for layer in draft.layer_outputs or ()]
        try:
            converter.convert(
                source, folder, str(target), validate=False, aux_hidden_state_layer_ids=states
            )
        except (OSError, ValueError, KeyError, RuntimeError) as fault:
            raise InvalidInputError(
                f"speculators cannot convert {source}",
                details=tuple(str(fault).splitlines()),
                hint=f"slipstream models {source}",
            ) from fault


def import_quietly(module: str) -> Any:
    """Import a module of speculators without the messages of it and transformers."""
    from loguru import logger
    from transformers.utils import logging

    logger.disable("speculators")
    logging.disable_progress_bar()
    return importlib.import_module(module)


def _settle(path: Path, target: Path, *, non_causal: bool) -> None:
    """Set the target, whose head and embedding are loaded, and the blocks' attention."""
    config: dict[str, Any] = json.loads(path.read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(target)
    config["sliding_window_non_causal"] = non_causal
    write_atomically(path, json.dumps(config, indent=2).encode())
