"""A target and drafters for it, of which each test changes one thing."""

from pathlib import Path

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.pairing import Fault, pair
from tests.unit.checkpoints.folders import (
    LLAMA,
    LLAMA_TENSORS,
    TOKENIZER,
    Table,
    Tensors,
    drafter_tensors,
    write_checkpoint,
)
from tests.untrained_drafter import DrafterShape, drafter_config

TARGET, DRAFTER = "maker/target", "maker/drafter"
NATIVE = drafter_config(LLAMA, DrafterShape())
LAYER_KEYS = ("block_size", "num_target_layers", "dflash_config")
SPECULATORS: Table = {
    "architectures": ["DFlashDraftModel"],
    "speculators_model_type": "dflash",
    "block_size": 8,
    "aux_hidden_state_layer_ids": [2, 4, 6, 8, 10],
    "mask_token_id": 3,
    "sliding_window_non_causal": True,
    "transformer_layer_config": {k: v for k, v in NATIVE.items() if k not in LAYER_KEYS},
    "speculators_config": {"verifier": {"name_or_path": "maker/target"}},
}
SLIDING: Table = {"sliding_window": 512, "layer_types": ["sliding_attention"]}


class Bench:
    """Writes a target and drafters for it, and reads them under short names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = self._read(TARGET, LLAMA, LLAMA_TENSORS, TOKENIZER)

    def drafter(
        self,
        config: Table = NATIVE,
        *,
        tensors: Tensors | None = None,
        tokenizer: Table | None = TOKENIZER,
    ) -> Checkpoint:
        return self._read(DRAFTER, config, tensors or drafter_tensors(NATIVE), tokenizer)

    def faults(
        self, drafter: Checkpoint, *, k: int | None = None, context: int | None = None
    ) -> tuple[Fault, ...]:
        return pair(self.target, drafter, draft_length=k, context=context).faults

    def _read(
        self, name: str, config: Table, tensors: Tensors, tokenizer: Table | None
    ) -> Checkpoint:
        folder = write_checkpoint(self.root / name, config, tensors=tensors, tokenizer=tokenizer)
        return read_checkpoint(str(folder)).model_copy(update={"name": name})


def with_own(**keys: object) -> Table:
    return NATIVE | {"dflash_config": NATIVE["dflash_config"] | keys}


def with_rope(**keys: object) -> Table:
    return NATIVE | {"rope_parameters": NATIVE["rope_parameters"] | keys}


def with_layers(**keys: object) -> Table:
    layers = SPECULATORS["transformer_layer_config"] | keys
    return SPECULATORS | {"transformer_layer_config": layers}
