"""As much of vLLM's weight transfer and layerwise reload as the file transfer touches."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import torch

First = TypeVar("First")
Second = TypeVar("Second")


class Info:
    """The base of what an engine is told."""


class Transfer(Generic[First, Second]):
    """The base class, without what the file transfer overrides."""

    update_info_cls: Any

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.model = self._default_model = model
        self.model_config = None

    def parse_update_info(self, update: dict[str, Any]) -> Any:
        return self.update_info_cls(**update)


def make_modules(calls: list[str]) -> dict[str, ModuleType]:
    """Return the modules that stand in for vLLM's; `calls` gets what was done to a model."""
    base = ModuleType("vllm.distributed.weight_transfer.base")
    vars(base).update(
        WeightTransferEngine=Transfer, WeightTransferInitInfo=Info, WeightTransferUpdateInfo=Info
    )
    reload = ModuleType("vllm.model_executor.model_loader.reload")
    vars(reload).update(
        initialize_layerwise_reload=lambda model: calls.append("initialize"),
        finalize_layerwise_reload=lambda model, config: calls.append("finalize"),
    )
    names = ["vllm"]
    for module in (base, reload):
        parts = module.__name__.split(".")
        names += [".".join(parts[:end]) for end in range(2, len(parts))]
    found = {name: ModuleType(name) for name in names if name not in sys.modules}
    return {**found, base.__name__: base, reload.__name__: reload}


class Drafter:
    """A drafter whose layers pack their weights on a CPU, as vLLM's do."""

    def __init__(self, layers: int, rows: int, width: int, *, packs: bool) -> None:
        projection = SimpleNamespace(tp_rank=0, num_kv_head_replicas=1)
        attention = SimpleNamespace(kv_size=rows, qkv_proj=projection)
        self.layers = [SimpleNamespace(self_attn=attention) for _ in range(layers)]
        self.packs = packs
        self.source: dict[str, torch.Tensor] = {}
        self._fused_kv_weight = torch.zeros(2 * layers * rows, width)
        self._k_norm_weights = torch.zeros(layers, 2)

    def _build_fused_kv_buffers(self) -> None:
        held = [] if self.packs else [self.source[name] for name in sorted(self.source)]
        self._fused_kv_weight = torch.cat(held) if held else torch.empty(0)
        self._k_norm_weights = torch.full((len(self.layers), 2), float(self.source["a"][0, 0]))


@dataclass
class Model:
    """A model that takes weights, or fails at the times that a test names."""

    model: Drafter
    calls: list[str]
    fails: list[bool] = field(default_factory=list)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.calls.append("load")
        self.model.source = dict(weights)
        if self.fails and self.fails.pop(0):
            raise OSError("a read error")


def make_config(folder: Path | str | None) -> Any:
    drafter = None if folder is None else SimpleNamespace(model=str(folder))
    return SimpleNamespace(
        speculative_config=None if folder is None else SimpleNamespace(draft_model_config=drafter)
    )
