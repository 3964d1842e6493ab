"""What is read from names and cards of the hub: builds of a model, and what it was made from."""

from pathlib import Path

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.hub import name_stem, parse_base_models
from tests.unit.checkpoints.folders import LLAMA, write_checkpoint


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


def card(front_matter: str) -> bytes:
    return f"---\n{front_matter}\n---\n# A model\n".encode()


@pytest.mark.parametrize(
    ("front_matter", "names"),
    [
        ("base_model: Qwen/Qwen3-8B", ("Qwen/Qwen3-8B",)),
        ("license: mit\nbase_model:\n- Qwen/Qwen3-8B\n- a/b\n", ("Qwen/Qwen3-8B", "a/b")),
        ("base_model: [a/b, a/b]", ("a/b",)),
        ("base_model: Qwen3-8B", None),
        ("base_model: ../../etc/passwd", None),
        ("base_model: {a: b}", None),
        ("base_model: [1, null, [a/b]]", None),
        ("license: mit", None),
        ("- a list", None),
        ("base_model: [a/b", None),
        ("base_model: !!python/object/apply:os.system [false]", None),
        (
            "base_model: [" + ", ".join(f"a/{at}" for at in range(9)) + "]",
            ("a/0", "a/1", "a/2", "a/3"),
        ),
        ("[" * 5000, None),
    ],
)
def test_names_of_repositories_are_taken_and_few(
    front_matter: str, names: tuple[str, ...] | None
) -> None:
    assert parse_base_models(card(front_matter)) == names


@pytest.mark.parametrize(
    "content", [None, b"", b"# A model\n", b"\xff---\n", b"---\nbase_model: a/b\n"]
)
def test_a_readme_without_front_matter_names_nothing(content: bytes | None) -> None:
    assert parse_base_models(content) is None


def test_the_card_of_a_folder_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", LLAMA)
    assert read_checkpoint(str(folder)).base_models is None
    (folder / "README.md").write_bytes(card("base_model: Qwen/Qwen3-8B"))
    assert read_checkpoint(str(folder)).base_models == ("Qwen/Qwen3-8B",)
