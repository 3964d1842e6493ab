"""Weights in 8 bits are the rounded ones; a measurement that fails says what to type."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.errors import EngineError
from slipstream.proving_ground.int8 import compare_products, make_int8
from tests.unit.cli.pairs import write_pair


def test_all_layers_are_rounded_by_a_scale_for_each_output(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    write_pair(tmp_path, target="toy")
    weight = torch.tensor([[1.0, -0.5], [0.02, 0.01]]).bfloat16()
    given = {"a.q_proj.weight": weight, "a.norm.weight": torch.ones(2).bfloat16()}
    save_file(given, tmp_path / "toy" / "model.safetensors")
    made = make_int8(tmp_path / "toy")
    stored = load_file(made / "model.safetensors")
    assert stored["a.q_proj.weight"].tolist() == [[127, -64], [127, 64]]
    assert stored["a.q_proj.weight_scale"].shape == (2, 1)
    back = stored["a.q_proj.weight"] * stored["a.q_proj.weight_scale"]
    torch.testing.assert_close(back, weight.float(), rtol=0.01, atol=0.005)
    assert torch.equal(stored["a.norm.weight"], given["a.norm.weight"])
    read = read_checkpoint(str(made), tokenizer=False)
    assert read.quantization is not None
    assert (read.quantization.scheme, read.quantization.method) == ("int8", "compressed-tensors")
    assert (
        json.loads((tmp_path / "toy" / "config.json").read_text()).get("quantization_config")
        is None
    )
    assert make_int8(tmp_path / "toy") == made


def test_a_measurement_that_fails_says_why_and_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no vllm")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(EngineError) as caught:
        compare_products({})
    assert caught.value.details[-1] == "ImportError: no vllm"
    assert caught.value.hint.endswith("-m slipstream.vllm_plugin.int8_timing")
