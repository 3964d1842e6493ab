"""Builds of a model are known by their names, and other models are not."""

import pytest

from slipstream.checkpoints.model_names import name_stem


@pytest.mark.parametrize(
    ("build", "model"),
    [
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "Qwen/Qwen3-30B-A3B"),
        ("saricles/Qwen3-Coder-Next-NVFP4-GB10", "Qwen/Qwen3-Coder-Next"),
        ("cyankiwi/gemma-4-26B-A4B-it-AWQ-4bit", "google/gemma-4-26B-A4B-it"),
        ("Intel/Qwen3.5-35B-A3B-int4-AutoRound", "Qwen/Qwen3.5-35B-A3B"),
        ("unsloth/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "meta-llama/Llama-3.1-8B-Instruct"),
        ("RadixArk/Qwen3.8-27B-NVFP4-BF16-LMHead", "Qwen/Qwen3.8-27B"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "Qwen/Qwen3-8B"),
        ("turboderp/GLM-5.3-Flash-exl3", "zai-org/GLM-5.3-Flash"),
        ("somebody/Qwen3-8B-4.75bit", "Qwen/Qwen3-8B"),
        ("./models/Qwen3-8B/", "Qwen/Qwen3-8B"),
    ],
)
def test_a_build_has_the_stem_of_its_model(build: str, model: str) -> None:
    assert name_stem(build) == name_stem(model)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"),
        ("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
        ("Qwen/Qwen3.5-27B", "Qwen/Qwen3.6-27B"),
        ("poolside/Laguna-S-2.1", "poolside/Laguna-XS-2.1"),
    ],
)
def test_another_model_has_another_stem(one: str, other: str) -> None:
    assert name_stem(one) != name_stem(other)


def test_a_name_that_is_only_a_build_word_is_left() -> None:
    assert name_stem("somebody/fp8") == "fp8"
