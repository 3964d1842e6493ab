"""A drafter is replaced whole or not at all, and only by one that fits in its place."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from slipstream.vllm_plugin import patches
from tests.unit.vllm_plugin.steering.fake_vllm import Drafter, Model, make_config, make_modules

MODULE = "slipstream.vllm_plugin.steering.file_transfer"
LAYERS, ROWS, WIDTH = 2, 3, 4
NAMES = [f"layers.{layer}.self_attn.{kind}_proj.weight" for layer in range(LAYERS) for kind in "kv"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return []


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> Any:
    """Return the module, imported beside what stands in for vLLM."""
    for name, module in make_modules(calls).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    monkeypatch.delitem(sys.modules, MODULE)
    return module


def save(folder: Path, value: float, **more: torch.Tensor) -> Path:
    folder.mkdir()
    weights = {name: torch.full((ROWS, WIDTH), value + at) for at, name in enumerate(NAMES)}
    save_file({**weights, "a": torch.full((1, 1), value), **more}, folder / "model.safetensors")
    return folder


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path, transfer: Any, calls: list[str]) -> Make:
    """Return a function that makes an engine whose drafter was loaded from `old`."""
    save(tmp_path / "old", 10.0)
    save(tmp_path / "new", 20.0)

    def engine(*, fails: list[bool] | None = None, packs: bool = True) -> Any:
        made = transfer.FileTransfer(None, make_config(tmp_path / "old"), "cpu", object())
        made.model = Model(Drafter(LAYERS, ROWS, WIDTH, packs=packs), calls, fails or [])
        return made

    return engine


def expect(value: float) -> torch.Tensor:
    return torch.cat([torch.full((ROWS, WIDTH), value + at) for at in range(len(NAMES))])


def test_a_drafter_is_replaced_in_the_buffers_that_graphs_refer_to(
    make: Make, tmp_path: Path, calls: list[str]
) -> None:
    engine = make()
    drafter = engine.model.model
    held = drafter._fused_kv_weight, drafter._k_norm_weights
    engine.start_weight_update()
    engine.update_weights({"folder": str(tmp_path / "new")})
    engine.finish_weight_update()
    assert calls == ["initialize", "load", "finalize"]
    assert drafter._fused_kv_weight is held[0]
    assert drafter._k_norm_weights is held[1]
    assert torch.equal(held[0], expect(20.0))
    assert held[1].unique().tolist() == [20.0]


def test_every_rank_takes_its_own_rows(make: Make, tmp_path: Path) -> None:
    for layer in (engine := make()).model.model.layers:
        layer.self_attn.kv_size = 1
        layer.self_attn.qkv_proj.tp_rank, layer.self_attn.qkv_proj.num_kv_head_replicas = 3, 2
    engine.model.model._fused_kv_weight = torch.zeros(len(NAMES), WIDTH)
    weights = {name: torch.arange(3.0)[:, None].expand(3, WIDTH).clone() for name in NAMES}
    for folder in ("old", "new"):
        save_file({**weights, "a": torch.ones(1, 1)}, tmp_path / folder / "model.safetensors")
    engine.update_weights({"folder": str(tmp_path / "new")})
    assert engine.model.model._fused_kv_weight.unique().tolist() == [1.0]


def test_checking_changes_nothing(make: Make, tmp_path: Path, calls: list[str]) -> None:
    make().update_weights({"folder": str(tmp_path / "new"), "check_only": True})
    assert calls == []


@pytest.mark.parametrize(
    ("fails", "fault", "left"),
    [
        ([True, False], RuntimeError, 10.0),
        ([False, True, False], RuntimeError, 20.0),
        ([True, True], OSError, None),
    ],
    ids=["the first", "one after a swap", "the one before, too"],
)
def test_a_drafter_that_cannot_be_loaded_leaves_the_one_before(
    make: Make, tmp_path: Path, fails: list[bool], fault: type[Exception], left: float | None
) -> None:
    engine = make(fails=[*fails])
    if not fails[0]:
        engine.update_weights({"folder": str(tmp_path / "new")})
    save(tmp_path / "third", 30.0)
    with pytest.raises(fault, match="a read error"):
        engine.update_weights({"folder": str(tmp_path / "third")})
    assert engine.model.calls == ["initialize", "load", "finalize"] * len(fails)
    assert left is None or torch.equal(engine.model.model._fused_kv_weight, expect(left))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"a": torch.ones(2, 1)}, r"a is F32 \[2, 1\], not F32 \[1, 1\]"),
        ({"a": torch.ones(1, 1).half()}, r"a is F16 \[1, 1\], not F32 \[1, 1\]"),
        ({"b": torch.ones(1)}, r"b is F32 \[1\], not missing"),
    ],
)
def test_tensors_that_have_no_place_are_refused_before_anything_changes(
    make: Make, tmp_path: Path, calls: list[str], more: dict[str, torch.Tensor], message: str
) -> None:
    save(tmp_path / "other", 1.0, **more)
    with pytest.raises(ValueError, match=message):
        make().update_weights({"folder": str(tmp_path / "other")})
    for where in ("other", "old"):
        (tmp_path / where / "mask_embedding.pt").touch()
        with pytest.raises(ValueError, match=f"{where} has a mask_embedding"):
            make().update_weights({"folder": str(tmp_path / "other")})
    assert calls == []


def test_a_folder_without_whole_safetensors_is_refused(
    make: Make, tmp_path: Path, calls: list[str]
) -> None:
    engine = make()
    (tmp_path / "empty").mkdir()
    for content in (None, b"", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]"):
        if content is not None:
            (tmp_path / "empty" / "model.safetensors").write_bytes(content)
        with pytest.raises((ValueError, SafetensorError), match=r"safetensors|header"):
            engine.update_weights({"folder": str(tmp_path / "empty")})
    assert calls == []


def test_a_drafter_of_an_unknown_class_is_refused(make: Make, tmp_path: Path) -> None:
    others = [object(), type("Head", (), {"model": object()})()]
    more_layers = make().model
    more_layers.model.layers *= 2
    for model in (*others, more_layers):
        engine = make()
        engine.model = model
        with pytest.raises(ValueError, match="cannot be swapped"):
            engine.update_weights({"folder": str(tmp_path / "new"), "check_only": True})


def test_the_target_is_never_replaced(make: Make) -> None:
    engine = make()
    engine.model = engine._default_model
    with pytest.raises(ValueError, match="only a drafter"):
        engine.start_weight_update()


@pytest.mark.parametrize("drafter", [None, "z-lab/somewhere"])
def test_an_engine_without_a_drafter_from_a_folder_starts_and_refuses(
    transfer: Any, tmp_path: Path, drafter: str | None
) -> None:
    engine = transfer.FileTransfer(None, make_config(drafter), "cpu", object())
    with pytest.raises(ValueError, match="no drafter"):
        engine.update_weights({"folder": str(tmp_path)})


class Register:
    """vLLM's register of such engines, which refuses a name twice."""

    def __init__(self) -> None:
        self._registry: dict[str, tuple[str, str]] = {}

    def register_engine(self, name: str, module: str, cls: str) -> None:
        assert name not in self._registry
        self._registry[name] = (module, cls)


def test_it_is_registered_once_under_its_name(
    monkeypatch: pytest.MonkeyPatch, transfer: Any
) -> None:
    module: Any = type(sys)("vllm.distributed.weight_transfer.factory")
    module.WeightTransferEngineFactory = register = Register()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv(patches.VARIABLE, raising=False)
    patches.apply_named()
    assert register._registry == {}
    monkeypatch.setenv(patches.SWAPS, "1")
    for _ in range(2):
        patches.apply_named()
    assert register._registry == {patches.BACKEND: (MODULE, transfer.FileTransfer.__name__)}
