"""What follows `--` goes through `slipstream plan`: understood, planned for, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.hardware import load_host

CODER = "saricles/Qwen3-Coder-Next-NVFP4-GB10"
QWEN = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["plan", *words], {})
    return code, json.loads(capsys.readouterr().out)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Plan the Spark's flagship, with these words for the engine."""
    return plan(capsys, QWEN, "--host", "gb10", "--json", "--", *words)[1]


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (("-tp", "2"), "tensor_parallel", 2),
        (("--tensor_parallel_size=2",), "tensor_parallel", 2),
        (("--max-model-len", "32k"), "context", 32000),
        (("--max_model_len", "32K"), "context", 32768),
        (("--max-model-len", "auto"), "context", -1),
        (("--max-num-seqs=3",), "sequences", 3),
        (("--max-num-batched-tokens", "16k"), "batched_tokens", 16000),
        (("--served-model-name", "a", "b"), "served_names", ["a", "b"]),
        (("--middleware", "a.B", "--middleware", "c.D"), "middleware", ["a.B", "c.D"]),
        (("--enable-prefix-caching",), "prefix_caching", True),
        (("--compilation-config.cudagraph_mode=NONE",), "compilation", {"cudagraph_mode": "NONE"}),
        (("--no-enforce-eager",), "eager", False),
        (("--gpu-mem", "0.5"), "memory_utilization", 0.5),
        (("--nnodes", "2", "-tp=2"), "nodes", 2),
    ],
)
def test_a_raw_argument_is_a_typed_setting_of_the_user(
    words: tuple[str, ...], setting: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(capsys, *words)["settings"][setting] == {
        "value": value,
        "source": "user",
        "because": "given after --",
    }


@pytest.mark.parametrize(
    "words",
    [
        ("--speculative-config", '{"model": "me/my-drafter", "num_speculative_tokens": 5}'),
        ("-sc", '{"model": "me/my-drafter", "num-speculative-tokens": 5}'),
        (
            "--speculative-config.model=me/my-drafter",
            "--speculative_config.num_speculative_tokens",
            "5",
        ),
        ("--spec-model", "me/my-drafter", "--spec-tokens=5"),
    ],
)
def test_the_users_own_drafter_is_planned_however_it_is_given(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", QWEN, "--host", "gb10", "--", *words], {}) == 1
    assert "me/my-drafter" in capsys.readouterr().err


def test_a_method_without_a_drafter_is_planned_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = planned(capsys, "--spec-method", "ngram", "--spec-tokens", "3")
    speculation = made["settings"]["speculation"]
    assert (speculation["method"]["value"], "drafter" in speculation) == ("ngram", False)
    assert speculation["length"]["value"] == 3
    assert [item["name"] for item in made["memory"]["items"]][:2] != [
        "target weights",
        "drafter weights",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-model-length", "9"), "hint: --max-model-len"),
        (("-tp", "two"), "'two' is no integer"),
        (("--model", "another/model"), "hint: slipstream plan another/model"),
        (("--spec-tokens", "3", "--speculative-config.num_speculative_tokens=4"), "exclude"),
        (("stray",), "'stray' is no value"),
        (("--speculative-config", "[9]"), "--speculative-config [9]"),
        (("--speculative-config.num_speculative_tokens", "[7]"), "num_speculative_tokens"),
        (("--compilation-config", "3"), "--compilation-config"),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size"),
        (("--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization"),
        (("--max-num-seqs", "0"), "--max-num-seqs"),
        (("--max-model-len", "-5"), "--max-model-len"),
    ],
)
def test_what_vllm_would_refuse_is_refused_before_anything_is_planned(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", QWEN, "--host", "gb10", "--", *words], {}) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "config",
    [
        {"method": "dflash", "model": None, "num_speculative_tokens": 7},
        {"method": "dflash", "num_speculative_tokens": "7"},
        {"num_speculative_tokens": None},
    ],
)
def test_null_and_numbers_in_quotes_are_taken_as_vllm_takes_them(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = planned(capsys, "--speculative-config", json.dumps(config))
    speculation = made["settings"]["speculation"]
    assert speculation["drafter"]["source"] == "recipe"
    assert isinstance(speculation["length"]["value"], int)


@pytest.mark.parametrize(
    ("words", "share"), [(("--quantization", "fp8"), 2), (("-q", "fp8_per_block"), 2)]
)
def test_weights_that_the_user_has_quantized_at_load_are_counted_so(
    words: tuple[str, ...], share: int, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("Qwen/Qwen3-8B", "--host", "rtx-3090", "--context", "4096", "--users", "1", "--json")
    code, made = plan(capsys, *target, "--", *words)
    _, plain = plan(capsys, *target)
    assert _weights(made)[0] == -(-_weights(plain)[0] // share)
    assert code == 0


def test_what_is_offloaded_takes_no_memory_of_the_accelerator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = ("Qwen/Qwen3-32B", "--host", "rtx-5090", "--no-speculation", "--json")
    code, made = plan(capsys, *target, "--", "--cpu-offload-gb", "40", "--max-model-len", "4096")
    assert (code, made["refusals"]) == (0, [])
    assert _weights(plan(capsys, *target)[1])[0] - _weights(made)[0] == 40 << 30


@pytest.fixture
def two_cards(tmp_path: Path) -> str:
    """Save a machine with two RTX 5090."""
    host = load_host("rtx-5090")
    (card,) = host.accelerators
    cards = (card, card.model_copy(update={"index": 1}))
    (tmp_path / "two.json").write_text(host.model_copy(update={"accelerators": cards}).to_json())
    return str(tmp_path / "two.json")


def test_two_cards_are_planned_for_two_cards(
    two_cards: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, refused = plan(capsys, CODER, "--host", two_cards, "--json")
    assert (alone, refused["refusals"][0]["code"]) == (1, "memory")
    words = ("--context", "32768", "--json", "--", "-tp", "2")
    code, made = plan(capsys, CODER, "--host", two_cards, *words)
    assert (code, made["refusals"]) == (0, [])
    weights = [item["size_bytes"] for item in made["memory"]["items"][:2]]
    assert weights == [(size + 1) // 2 for size in _weights(refused)]


def _weights(made: dict[str, Any]) -> list[int]:
    return [item["size_bytes"] for item in made["memory"]["items"][:2]]


@pytest.mark.parametrize("order", [("rtx-5090", "rtx-3090"), ("rtx-3090", "rtx-5090")])
def test_unequal_cards_are_planned_for_the_smaller(
    order: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = tuple(load_host(name).accelerators[0] for name in order)
    host = load_host(order[0]).model_copy(update={"accelerators": cards})
    (tmp_path / "mixed.json").write_text(host.to_json())
    words = ("Qwen/Qwen3-8B", "--host", str(tmp_path / "mixed.json"), "--json", "--", "-tp", "2")
    _, made = plan(capsys, *words)
    smaller = load_host("rtx-3090").accelerators[0].memory_total_bytes
    assert made["memory"]["device_bytes"] == smaller


def test_three_shards_on_two_cards_are_refused(
    two_cards: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, made = plan(capsys, CODER, "--host", two_cards, "--json", "--", "-pp", "3")
    assert code == 1
    assert "accelerators" in [fault["code"] for fault in made["refusals"]]


def test_two_linked_sparks_are_planned_as_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--host", "gb10-linked-1", "--json", "--", "-tp", "2", "--nnodes", "2")
    code, made = plan(capsys, CODER, *words)
    assert (code, made["warnings"][0]["code"]) == (0, "nodes")
    _, alone = plan(capsys, CODER, "--host", "gb10-linked-1", "--json")
    assert _weights(made) == [(size + 1) // 2 for size in _weights(alone)]


def test_a_recipes_extra_arguments_are_planned_with_their_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = plan(capsys, "Intel/Qwen3.5-35B-A3B-int4-AutoRound", "--host", "gb10", "--json")[1]
    parser = made["settings"]["tool_parser"]
    assert (parser["value"], parser["source"]) == ("qwen3_xml", "recipe")
