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


@pytest.mark.parametrize(
    ("target", "host", "parsers", "method"),
    [
        ("Qwen/Qwen3-8B", "h100", ("qwen3_json", "qwen3"), "dflash"),
        ("Qwen/Qwen3-8B-AWQ", "rtx-3090", ("qwen3_json", "qwen3"), "dflash"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "h100", ("qwen3_coder", None), "dflash"),
        ("google/gemma-4-31B-it", "b200", ("gemma4", "gemma4"), "dflash"),
        ("openai/gpt-oss-20b", "h100", ("openai", "openai_gptoss"), "dflash"),
        ("openai/gpt-oss-120b", "h100", ("openai", "openai_gptoss"), "dflash"),
        ("meta-llama/Llama-3.1-8B-Instruct", "h100", ("llama3_json", None), "dflash"),
        ("zai-org/GLM-4.6", "b300x8", ("glm47", "glm47"), "mtp"),
        ("zai-org/GLM-4.6-FP8", "b300x8", ("glm47", "glm47"), "mtp"),
        ("deepseek-ai/DeepSeek-V3.1", "b200x8", ("deepseek_v31", "deepseek_v3"), "mtp"),
        ("deepseek-ai/DeepSeek-V3.2", "b200x8", ("deepseek_v32", "deepseek_v3"), "mtp"),
        ("moonshotai/Kimi-K2.5", "b200x8", ("kimi_k2", "kimi_k2"), "dflash"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "b200",
            ("qwen3_coder", "nemotron_v3"),
            "ngram_gpu",
        ),
    ],
)
def test_a_known_model_is_planned_whole_without_a_hub(
    target: str,
    host: str,
    parsers: tuple[str | None, str | None],
    method: str,
    capsys: Capture,
) -> None:
    made = plan(capsys, target, "--host", host)
    chosen = (made.settings.tool_parser, made.settings.reasoning_parser)
    assert tuple(choice.value if choice else None for choice in chosen) == parsers
    assert made.speculation is not None
    assert made.speculation.method.value == method
    assert made.memory.items[0].size_bytes is not None
    assert made.memory.kv_bytes_per_token


def test_a_gated_model_of_the_index_warns_with_its_hint(capsys: Capture) -> None:
    made = plan(capsys, "meta-llama/Llama-3.1-8B-Instruct", "--host", "h100")
    (warning,) = (fault for fault in made.warnings if fault.code == "gated")
    assert "HF_TOKEN" in warning.hint


@pytest.mark.parametrize("host", ["h100", "gb10", "rtx-5090"])
def test_a_plain_plan_has_few_notes_and_none_of_another_machine(host: str, capsys: Capture) -> None:
    made = plan(capsys, "Qwen/Qwen3-8B", "--host", host)
    assert len(made.notes) <= 2
    reasons = [decision.because for decision in (*made.decisions, *made.variables)]
    assert host == "gb10" or not any("Spark" in text for text in (*made.notes, *reasons))
