"""A weight transfer engine for vLLM that loads a drafter from a folder of safetensors.

vLLM's own engines spread an update over three calls, between which steps run. Here everything
happens within one `update_weights`, so every step finds a whole drafter. If loading fails, the
drafter before is loaded again from its folder; the call fails in any case. Two drafters match if an
engine that runs one can hold the other in the same places: the same names, shapes and types.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

CONTEXT_WEIGHT = "_fused_kv_weight"
# Read by vLLM from the first drafter's folder, whatever is loaded later, and no safetensors.
MASK_EMBEDDING = "mask_embedding.pt"
SHOWN = 3

# Below vLLM's own logger, whose handler it so has.
_log = logging.getLogger("vllm.slipstream")

Weights = dict[str, torch.Tensor]
Headers = dict[str, tuple[str, tuple[int, ...]]]


@dataclass
class NoInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Empty: a folder needs no connection."""


@dataclass
class FolderInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The folder of a drafter, and whether it is only checked."""

    folder: str
    check_only: bool = False


class FileTransfer(WeightTransferEngine[NoInitInfo, FolderInfo]):  # type: ignore[misc]
    """Replaces the drafter, and nothing else."""

    init_info_cls = NoInitInfo
    update_info_cls = FolderInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        speculation = vllm_config.speculative_config
        drafter = speculation.draft_model_config if speculation is not None else None
        folder = None if drafter is None else Path(drafter.model)
        self._first = self._loaded = folder if folder and folder.is_dir() else None
        self._headers = read_headers(self._first) if self._first else None

    def init_transfer_engine(self, init_info: NoInitInfo) -> None:
        """Do nothing: there is no peer to connect to."""

    def start_weight_update(self) -> None:
        """Refuse an update of the target; of a drafter nothing is changed yet."""
        if self.model is self._default_model:
            raise ValueError("only a drafter can be replaced")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Replace the drafter; unlike the base class, without an accelerator too."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FolderInfo) -> None:
        """Check a folder against the loaded drafter, and unless that is all, load it."""
        folder, loaded = Path(update_info.folder), self._loaded
        if self._headers is None or self._first is None or loaded is None:
            raise ValueError("this engine has no drafter loaded from a folder")
        if (self._first / MASK_EMBEDDING).exists():
            raise ValueError(f"{self._first} has a {MASK_EMBEDDING}, which cannot be swapped")
        _require_known_class(self.model, self._headers)
        require_match(self._headers, folder)
        if update_info.check_only:
            return
        try:
            self._load(folder)
        except Exception as fault:
            self._load(loaded)
            raise RuntimeError(f"{folder} was not loaded: {fault}") from fault
        self._loaded = folder

    def finish_weight_update(self) -> None:
        """Do nothing: the drafter is complete since `update_weights`."""

    def shutdown(self) -> None:
        """Do nothing: no file is open between two updates."""

    def _load(self, folder: Path) -> None:
        """Load a drafter whole, into the tensors that captured graphs refer to."""
        began = time.monotonic()
        weights = dict(_read_tensors(folder))
        drafter = self.model.model
        buffers = {name: held for name, held in vars(drafter).items() if torch.is_tensor(held)}
        _synchronize()
        initialize_layerwise_reload(self.model)
        try:
            # In one call: the buffers are rebuilt at the end of each.
            self.model.load_weights(weights.items())
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
        drafter._build_fused_kv_buffers()
        for name, held in buffers.items():
            built = getattr(drafter, name)
            if name == CONTEXT_WEIGHT and built.shape != held.shape:
                # A CPU's layers have packed their weights by now, and keep none to build it from.
                built = _join_context_weights(drafter, weights)
            held.copy_(built)
            setattr(drafter, name, held)
        _synchronize()
        milliseconds = 1000 * (time.monotonic() - began)
        _log.warning("slipstream swap: %s was loaded in %.0f ms", folder, milliseconds)


def _require_known_class(model: Any, names: Iterable[str]) -> None:
    """Refuse a drafter whose buffers we could not fill again."""
    drafter = getattr(model, "model", None)
    is_known = hasattr(drafter, "_build_fused_kv_buffers") and hasattr(drafter, "layers")
    if not is_known or not {*_name_context_weights(drafter)} <= {*names}:
        raise ValueError(f"a drafter of class {type(model).__name__} cannot be swapped")


def _name_context_weights(drafter: Any) -> Iterator[str]:
    for at in range(len(drafter.layers)):
        for kind in ("k_proj", "v_proj"):
            yield f"layers.{at}.self_attn.{kind}.weight"


def _read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in list_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 it is no dictionary
                yield name, opened.get_tensor(name)


def _join_context_weights(drafter: Any, weights: Weights) -> torch.Tensor:
    """Return the rows by which this rank makes keys and values of the target's states."""
    attention = drafter.layers[0].self_attn
    rows, projection = attention.kv_size, attention.qkv_proj
    first = projection.tp_rank // projection.num_kv_head_replicas * rows
    names = _name_context_weights(drafter)
    return torch.cat([weights[name][first : first + rows] for name in names])


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def list_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"there are no safetensors in {folder}")
    return files


def read_headers(folder: Path) -> Headers:
    """Return the type and the shape of every tensor in a folder, by name; no weights are read."""
    found: Headers = {}
    for file in list_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 it is no dictionary
                if name in found:
                    raise ValueError(f"{name} is in two files of {folder}")
                part = opened.get_slice(name)
                found[name] = (part.get_dtype(), tuple(part.get_shape()))
    return found


def require_match(loaded: Headers, folder: Path) -> None:
    """Refuse a folder whose tensors have no place in the drafter that is loaded."""
    if (folder / MASK_EMBEDDING).exists():
        raise ValueError(f"{folder} has a {MASK_EMBEDDING}, which cannot be swapped")
    there = read_headers(folder)
    if wrong := sorted(name for name in loaded | there if loaded.get(name) != there.get(name)):
        shown = "; ".join(
            f"{name} is {_show(there.get(name))}, not {_show(loaded.get(name))}"
            for name in wrong[:SHOWN]
        )
        raise ValueError(f"{len(wrong)} tensors of {folder} do not match: {shown}")


def _show(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if tensor is None else f"{tensor[0]} {list(tensor[1])}"
