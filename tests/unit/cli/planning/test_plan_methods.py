"""`plan --method`: every way of drafting, what it needs, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.engines.vllm_methods import METHOD_NAMES, METHODS
from slipstream.planning import LaunchPlan
from tests.unit.checkpoints.folders import (
    LLAMA,
    LLAMA_TENSORS,
    TOKENIZER,
    drafter_tensors,
    write_checkpoint,
)
from tests.untrained_drafter import DrafterShape, drafter_config

Capture = pytest.CaptureFixture[str]

EAGLE3 = {
    **LLAMA,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": LLAMA["vocab_size"],
    "max_position_embeddings": 512,
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> None:
    """Work in a folder with a target, drafters and a smaller model."""
    write_models(tmp_path)


def write_models(folder: Path) -> None:
    """Write a target, a drafter of two kinds for it, and a smaller model."""
    config = drafter_config(LLAMA, DrafterShape())
    write_checkpoint(folder / "target", LLAMA, tensors=LLAMA_TENSORS, tokenizer=TOKENIZER)
    write_checkpoint(folder / "flash", config, tensors=drafter_tensors(config))
    write_checkpoint(folder / "eagle", EAGLE3, tensors=drafter_tensors(config))
    write_checkpoint(folder / "small", LLAMA, tensors=LLAMA_TENSORS, tokenizer=TOKENIZER)


def plan(capsys: Capture, *words: str, host: str = "h100") -> LaunchPlan:
    run(["plan", "target", "--host", host, "--json", *words], {})
    return LaunchPlan.model_validate_json(capsys.readouterr().out)


def find_config(made: LaunchPlan) -> dict[str, Any]:
    assert made.speculation is not None
    return dict(made.speculation.to_config())


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (
            ("--method", "ngram"),
            {
                "method": "ngram_gpu",
                "num_speculative_tokens": 5,
                "prompt_lookup_max": 4,
                "prompt_lookup_min": 2,
            },
        ),
        (("--method", "suffix"), {"method": "suffix", "num_speculative_tokens": 24}),
        (("--method", "mtp"), {"method": "mtp", "num_speculative_tokens": 3}),
        (("--method", "ngram", "--k", "2"), {"num_speculative_tokens": 2}),
        (("--method", "ngram", "--users", "16"), {"num_speculative_tokens": 5}),
        (("--method", "eagle3", "--drafter", "eagle"), {"method": "eagle3"}),
        (("--drafter", "eagle"), {"method": "eagle3", "num_speculative_tokens": 3}),
        (("--method", "eagle", "--drafter", "small"), {"method": "eagle"}),
        (
            ("--method", "draft_model", "--drafter", "small"),
            {"method": "draft_model", "num_speculative_tokens": 3},
        ),
        (("--method", "dflash", "--drafter", "flash"), {"method": "dflash"}),
    ],
)
def test_a_method_becomes_the_engines_configuration(
    words: tuple[str, ...], config: dict[str, Any], capsys: Capture
) -> None:
    assert config.items() <= find_config(plan(capsys, *words)).items()


def test_on_a_cpu_ngrams_are_proposed_by_the_processor(capsys: Capture) -> None:
    assert find_config(plan(capsys, "--method", "ngram", host="cpu-server"))["method"] == "ngram"


def test_plain_is_no_speculation(capsys: Capture) -> None:
    plain = plan(capsys, "--method", "plain")
    assert plain == plan(capsys, "--no-speculation")
    assert plain == plan(capsys, "--no-speculation", "--drafter", "flash", "--k", "3")
    assert plain.speculation is None


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("--method", "dflash", "--drafter", "eagle"), "method", "--method eagle3"),
        (("--method", "draft_model", "--drafter", "flash"), "not-a-model", "--method dflash"),
        (("--drafter", "small"), "not-a-drafter", "--method draft_model"),
        (("--method", "suffix", "--", "--async-scheduling"), "async-scheduling", "leave"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: tuple[str, ...], code: str, hint: str, capsys: Capture
) -> None:
    found = {fault.code: fault for fault in plan(capsys, *words).refusals}
    assert hint in found[code].hint


def test_a_class_without_inner_states_keeps_what_does_not_read_them(
    tmp_path: Path, capsys: Capture
) -> None:
    write_checkpoint(tmp_path / "target", {**LLAMA, "architectures": ["GPT2LMHeadModel"]})
    assert [one.code for one in plan(capsys, "--drafter", "eagle").refusals] == ["target-class"]
    assert plan(capsys, "--method", "ngram").refusals == ()
    assert plan(capsys, "--method", "draft_model", "--drafter", "small").refusals == ()


def test_a_model_drafts_if_it_has_the_same_tokens_and_is_smaller(
    tmp_path: Path, capsys: Capture
) -> None:
    words = ("--method", "draft_model", "--drafter", "small")
    assert [fault.code for fault in plan(capsys, *words).warnings] == ["draft-model-size"]
    write_checkpoint(tmp_path / "small", {**LLAMA, "vocab_size": 7}, tokenizer={"other": 1})
    refused = plan(capsys, *words).refusals
    assert {fault.code for fault in refused} == {"vocabulary-size", "tokenizer"}


def test_a_drafting_models_weights_and_cache_are_in_the_budget(capsys: Capture) -> None:
    alone = plan(capsys, "--method", "ngram").memory
    drafted = plan(capsys, "--method", "draft_model", "--drafter", "small").memory
    assert alone.kv_bytes_per_token is not None
    assert drafted.kv_bytes_per_token == 2 * alone.kv_bytes_per_token
    sizes = {item.name: item.size_bytes for item in drafted.items}
    assert sizes["drafter weights"] == sizes["target weights"]


def test_the_targets_own_heads_keep_a_layers_cache(tmp_path: Path, capsys: Capture) -> None:
    alone = plan(capsys, "--method", "ngram").memory.kv_bytes_per_token
    layers = LLAMA["num_hidden_layers"]
    write_checkpoint(
        tmp_path / "target",
        {**LLAMA, "num_nextn_predict_layers": 1},
        tensors={f"model.layers.{layers}.mlp.weight": ("BF16", (4, 4))},
        tokenizer=TOKENIZER,
    )
    made = plan(capsys, "--method", "mtp")
    assert made.refusals == ()
    assert alone is not None
    assert made.memory.kv_bytes_per_token == alone + alone // layers


def test_a_target_without_heads_is_told(capsys: Capture) -> None:
    faults = plan(capsys, "--method", "mtp")
    assert [fault.code for fault in (*faults.refusals, *faults.warnings)] == ["mtp-layers"]


def test_heads_are_left_alone_where_vllm_takes_the_target_for_a_drafter(
    tmp_path: Path, capsys: Capture
) -> None:
    heads = {f"model.layers.{LLAMA['num_hidden_layers']}.mlp.weight": ("BF16", (4, 4))}
    config = {**LLAMA, "num_nextn_predict_layers": 1}
    write_checkpoint(tmp_path / "made-for-DFlash", config, tensors=heads, tokenizer=TOKENIZER)
    command = ["plan", "made-for-DFlash", "--host", "h100", "--json"]
    run(command, {})
    made = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert find_config(made)["method"] == "ngram_gpu"
    run([*command, "--method", "mtp"], {})
    made = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert [fault.code for fault in made.refusals] == ["mtp-name"]


def test_every_name_is_a_method_or_none() -> None:
    assert {*METHODS, "plain"} == set(METHOD_NAMES)
