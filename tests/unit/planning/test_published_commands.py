"""Four published commands beside what `plan` gives, held as docs/published-commands.md."""

from pathlib import Path

from slipstream.planning.settings.container_variables import read_container_variables
from slipstream.recipes import load_recipes
from tests.snapshots import read_snapshot
from tests.unit.planning.cells import plan_cell
from tests.unit.planning.settings.test_container_variables import CONTAINER

DOCS = Path(__file__).parents[3] / "docs"
RECIPES = {recipe.name: recipe for recipe in load_recipes()}
SPECULATIVE = "--speculative-config."

COMMANDS: dict[str, tuple[str, str, dict[str, str]]] = {
    "NVIDIA forum 367271: Gemma 4 31B on a DGX Spark, vLLM 0.19.2rc1 and three patches": (
        "gemma-4-31b-it-fp8-gb10",
        "gb10",
        {
            "VLLM_DISABLE_COMPILE_CACHE": "1",
            "--quantization": "fp8",
            "--max-model-len": "16384",
            "--max-num-batched-tokens": "16384",
            "--gpu-memory-utilization": "0.80",
            "--enforce-eager": "set",
            "--limit-mm-per-prompt": '{"image":0,"video":0}',
            f"{SPECULATIVE}method": "dflash",
            f"{SPECULATIVE}model": "RedHatAI/gemma-4-31B-it-speculator.dflash",
            f"{SPECULATIVE}num_speculative_tokens": "8",
        },
    ),
    "NVIDIA forum, DFlash on DGX Spark: Qwen3.5 35B-A3B on a DGX Spark, spark-vllm-docker": (
        "qwen3.5-35b-a3b-int4-gb10",
        "gb10",
        {
            "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
            "--host": "0.0.0.0",
            "--port": "8888",
            "--max-model-len": "262144",
            "--max-num-batched-tokens": "32768",
            "--gpu-memory-utilization": "0.7",
            "--enable-auto-tool-choice": "set",
            "--tool-call-parser": "qwen3_xml",
            "--load-format": "fastsafetensors",
            "--enable-prefix-caching": "set",
            "--chat-template": "unsloth.jinja",
            "--attention-backend": "flash_attn",
            f"{SPECULATIVE}method": "dflash",
            f"{SPECULATIVE}model": "z-lab/Qwen3.5-35B-A3B-DFlash",
            f"{SPECULATIVE}num_speculative_tokens": "15",
        },
    ),
    "AEON-7/vllm-dflash README: Qwen3.5 27B NVFP4 on a DGX Spark, by its container's variables": (
        "qwen3.5-27b-nvfp4-gb10",
        "gb10",
        {
            "--served-model-name": CONTAINER["SERVED_MODEL_NAME"],
            "--max-model-len": CONTAINER["MAX_MODEL_LEN"],
            "--max-num-seqs": CONTAINER["MAX_NUM_SEQS"],
            "--max-num-batched-tokens": CONTAINER["MAX_NUM_BATCHED_TOKENS"],
            "--gpu-memory-utilization": CONTAINER["GPU_MEMORY_UTILIZATION"],
            "--attention-backend": CONTAINER["ATTENTION_BACKEND"],
            f"{SPECULATIVE}method": "dflash",
            f"{SPECULATIVE}model": CONTAINER["DFLASH_DRAFTER"],
            f"{SPECULATIVE}num_speculative_tokens": CONTAINER["DFLASH_NUM_SPEC_TOKENS"],
        },
    ),
    "Model card: Gemma 4 31B on a B300": (
        "gemma-4-31b-it-b300",
        "b300",
        {
            "--attention-backend": "triton_attn",
            "--max-num-batched-tokens": "32768",
            "--trust-remote-code": "set",
            f"{SPECULATIVE}method": "dflash",
            f"{SPECULATIVE}model": "z-lab/gemma-4-31B-it-DFlash",
            f"{SPECULATIVE}num_speculative_tokens": "15",
            f"{SPECULATIVE}attention_backend": "flash_attn",
        },
    ),
}

NOT_SET = {
    "VLLM_DISABLE_COMPILE_CACHE": "obsolete: it went with the patches",
    "--port": "a matter of the site; give it after --",
    "--chat-template": "a matter of the site; give it after --",
    "--enable-prefix-caching": "the engine's default, but see --no-enable-prefix-caching",
    "--trust-remote-code": "not needed: 0.32 loads DFlash drafters itself, and it is a hole",
    "--attention-backend": "the target's is left to the engine: the drafter has its own now",
}


def compare(name: str, machine: str, published: dict[str, str]) -> list[str]:
    variables = CONTAINER if "qwen3.5-27b" in name else {}
    options = read_container_variables(variables).options
    plan = plan_cell(RECIPES[name], machine, options)
    ours = {entry.flag: entry for entry in (*plan.variables, *plan.decisions)}
    lines = ["| setting | published | plan | why |", "| --- | --- | --- | --- |"]
    for flag in dict.fromkeys([*published, *ours]):
        decision = ours.get(flag)
        value = "not set" if decision is None else decision.value or "set"
        theirs = published.get(flag, "not set")
        same = theirs.lower() == value.lower()
        why = NOT_SET.get(flag, "") if decision is None else decision.because
        if not same:
            assert why, f"{flag} differs without a reason"
        lines.append(f"| `{flag}` | {theirs} | {value} | {'same' if same else why} |")
    return lines


def test_every_difference_from_a_published_command_has_its_reason() -> None:
    parts = [
        "# Four published commands, and what `slipstream plan` gives today",
        "Made and checked by tests/unit/planning/test_published_commands.py, without the hub: what "
        "is known of the checkpoints is what the recipes carry.",
    ]
    for title, (name, machine, published) in COMMANDS.items():
        parts += [f"## {title}", "\n".join(compare(name, machine, published))]
    shown = "\n\n".join(parts) + "\n"
    assert shown == read_snapshot("published-commands.md", shown, DOCS)
