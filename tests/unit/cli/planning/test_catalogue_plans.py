"""Plans of models that only the catalogue knows, as a user types them, without a hub."""

import os

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan

Capture = pytest.CaptureFixture[str]
CODER = "saricles/Qwen3-Coder-Next-NVFP4-GB10"
AUTOROUND = "Intel/Qwen3.5-35B-A3B-int4-AutoRound"
GEMMA = "google/gemma-4-31B-it"
DRAFT_BACKEND = "--speculative-config.attention_backend"
AEON = {
    "MODEL_PATH": "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4",
    "GPU_MEMORY_UTILIZATION": "0.85",
    "ATTENTION_BACKEND": "flash_attn",
}


def plan(capsys: Capture, *words: str, code: int = 0) -> LaunchPlan:
    assert run(["plan", *words, "--json"], os.environ) == code
    return LaunchPlan.model_validate_json(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("target", "flag", "value", "source"),
    [
        (CODER, "--gpu-memory-utilization", "0.6", "recipe"),
        (AUTOROUND, "--gpu-memory-utilization", "0.7", "recipe"),
        (AUTOROUND, "--load-format", "safetensors", "default"),
        (GEMMA, DRAFT_BACKEND, "TRITON_ATTN", "hardware"),
    ],
)
def test_a_recipe_of_a_spark_is_evidence_and_not_an_order(
    target: str, flag: str, value: str, source: str, capsys: Capture
) -> None:
    made = plan(capsys, target, "--host", "gb10")
    decision = made.find(flag)
    assert decision is not None
    assert (decision.value, decision.source) == (value, source)
    assert "fa2-draft-on-sm121" not in {fault.code for fault in made.warnings}


def test_what_a_container_variable_asks_for_is_not_said_to_be_unused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, value in AEON.items():
        monkeypatch.setenv(name, value)
    made = plan(capsys, "--from-env", "--host", "gb10")
    assert {"0.85", "FLASH_ATTN"} <= set(made.argv())
    unused = next(note for note in made.notes if note.startswith("not used"))
    assert "TurboQuant" in unused
    assert "0.85" not in unused
    assert "--attention-backend" not in unused
