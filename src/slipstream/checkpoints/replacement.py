"""Whether a drafter can replace another in a running engine.

Only the weights are replaced: the engine goes on with the shapes and with the config of the drafter
that it started with. What differs there would go unnoticed, and draft worse.
"""

import json
from collections.abc import Iterator
from typing import Any

from slipstream.checkpoints.files import CheckpointFiles, open_files
from slipstream.checkpoints.pairing import Fault, differ, refuse
from slipstream.checkpoints.reading import read_checkpoint

SHOWN = 3
# A separately trained mask, which vLLM reads from the first drafter's folder only.
MASK_EMBEDDING = "mask_embedding.pt"
# What vLLM's DFlash model reads from a config beside what a `Checkpoint` has.
_KEYS = ("hidden_act", "rms_norm_eps", "attention_bias", "is_neox_style", "logit_scale")
_OWN_KEYS = ("attention_sink_bias", "attention_value_scale", "use_aux_hidden_state")


def find_replacement_faults(loaded: str, drafter: str) -> Iterator[Fault]:
    files, others = open_files(loaded), open_files(drafter)
    hint = f"stop the run, then slipstream serve TARGET --drafter {drafter}"
    if files.read(MASK_EMBEDDING) is not None or others.read(MASK_EMBEDDING) is not None:
        message = f"{MASK_EMBEDDING} is read only when an engine starts"
        yield refuse("swap-mask", message, hint)
    held, given = (_describe_tensors(one) for one in (files, others))
    if wrong := sorted(name for name in held | given if held.get(name) != given.get(name)):
        shown = "; ".join(
            f"{name} is {given.get(name, 'missing')}, not {held.get(name, 'there')}"
            for name in wrong[:SHOWN]
        )
        message = f"{len(wrong)} tensors of {drafter} do not match the loaded drafter's: {shown}"
        yield refuse("swap-tensors", message, hint)
    ours, theirs = (_describe_settings(one) for one in (files, others))
    if wrong := [name for name in ours if differ(ours[name], theirs[name])]:
        shown = "; ".join(f"{name} is {theirs[name]}, not {ours[name]}" for name in wrong[:SHOWN])
        message = f"{drafter} was made for other settings than the loaded drafter's: {shown}"
        yield refuse("swap-settings", message, hint)


def _describe_tensors(files: CheckpointFiles) -> dict[str, str]:
    return {one.name: f"{one.dtype} {list(one.shape)}" for one in files.read_tensors() or ()}


def _describe_settings(files: CheckpointFiles) -> dict[str, Any]:
    """Return what the engine took from the config, whichever layout that has."""
    checkpoint = read_checkpoint(files.name, tokenizer=False)
    draft, rope = checkpoint.draft, checkpoint.rope
    config: dict[str, Any] = json.loads(files.read("config.json") or b"{}")
    layers, own = config.get("transformer_layer_config") or config, config.get("dflash_config")
    stated = draft.causal_statements.values() if draft else ()
    return {
        "family": draft and draft.family,
        "block_size": draft and draft.block_size,
        "target layers": draft and draft.layer_outputs,
        "mask_token_id": draft and draft.mask_token_id,
        "sample_from_anchor": draft and draft.drafts_from_anchor,
        "draft_vocab_size": (draft and draft.draft_vocabulary) or checkpoint.vocabulary_size,
        "causal": next(iter(stated), None),
        "use_swa": draft and draft.forced_sliding,
        "layers": checkpoint.layers and tuple(map(str, checkpoint.layers)),
        "attention heads": checkpoint.attention_heads,
        "rope_theta": rope and rope.theta,
        "rope scaling": rope and (rope.scaling, rope.factor),
        **{key: layers.get(key, config.get(key)) for key in _KEYS},
        **{key: (own or {}).get(key) for key in _OWN_KEYS},
    }
