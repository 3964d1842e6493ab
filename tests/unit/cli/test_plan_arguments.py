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
    assert (speculation["method"]["value"], speculation["drafter"]) == ("ngram", None)
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
        (("--speculative-config", "[9]"), "is not a JSON object"),
    ],
)
def test_what_vllm_would_not_understand_is_refused_before_anything_is_planned(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", QWEN, "--host", "gb10", "--", *words], {}) == 2
    assert said in capsys.readouterr().err


def test_no_speculation_and_speculation_exclude_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", QWEN, "--host", "gb10", "--no-speculation", "--", "--spec-tokens", "3"]
    assert run(words, {}) == 2
    assert "exclude each other" in capsys.readouterr().err


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


def test_a_saved_plan_names_local_folders_by_their_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    monkeypatch.chdir(tmp_path)
    _, made = plan(capsys, "mine", "--host", "h100", "--no-speculation", "--json")
    assert made["target"] == "mine"
    assert made["settings"]["model"]["value"] == str(tmp_path / "mine")


def test_a_recipes_extra_arguments_are_planned_with_their_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = plan(capsys, "Intel/Qwen3.5-35B-A3B-int4-AutoRound", "--host", "gb10", "--json")[1]
    parser = made["settings"]["tool_parser"]
    assert (parser["value"], parser["source"]) == ("qwen3_xml", "recipe")
