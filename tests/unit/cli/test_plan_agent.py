"""`plan --goal agent`: the cache, the context, and drafts where both cannot be had."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from slipstream.recipes.recipe import Recipe, Settings
from slipstream.user_folders import recipe_overlay
from tests.unit.checkpoints.folders import write_safetensors
from tests.unit.checkpoints.test_layers import QWEN3_NEXT
from tests.unit.proving_ground.test_untrained_drafter import TARGET

TYPES = [*["linear_attention"] * 3, "full_attention"] * 12
TEMPLATE = "{{ tools }}<tool_call><function=f>{% if enable_thinking %}<think>{% endif %}"


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def make_pair(*, hybrid: bool, context: int = 262144, **config: Any) -> None:
    """Lay out a target and its drafter."""
    layers = {**QWEN3_NEXT, "layer_types": TYPES} if hybrid else {}
    described = {**TARGET, **layers, "max_position_embeddings": context, **config}
    described["architectures"] = ["Qwen3_5ForCausalLM" if hybrid else "Qwen3ForCausalLM"]
    drafter = drafter_config(described, DrafterShape())
    for name, content in (("target", described), ("drafter", drafter)):
        Path(name).mkdir()
        content["max_position_embeddings"] = context
        Path(name, "config.json").write_text(json.dumps(content))
    Path("target/chat_template.jinja").write_text(TEMPLATE)


def promote(settings: dict[str, Any] | None = None) -> None:
    """Make a recipe of the user's own that knows the pair."""
    overlay = recipe_overlay({"XDG_CONFIG_HOME": str(Path.cwd() / "config")})
    overlay.mkdir(parents=True)
    recipe = Recipe(
        name="ours",
        title="a pair of one's own",
        target=str(Path("target").absolute()),
        drafter=str(Path("drafter").absolute()),
        machines=("h100",),
        engine="vllm",
        engine_version="0.32.0",
        settings=Settings(**(settings or {})),
    )
    (overlay / "ours.json").write_text(recipe.to_json())


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    run(["plan", "target", "--host", "h100", "--goal", "agent", "--json", *words], {})
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def list_codes(made: dict[str, Any]) -> list[str]:
    return [fault["code"] for fault in made["warnings"]]


def test_an_agents_cache_is_on_and_its_context_long(capsys: pytest.CaptureFixture[str]) -> None:
    make_pair(hybrid=False, mtp_num_hidden_layers=1)
    whole = plan(capsys, "--drafter", "drafter")
    made = whole["settings"]
    assert not {"agent-drafts", "tool-parser"} & {*list_codes(whole)}
    assert made["prefix_caching"]["value"] is True
    assert made["context"]["value"] == 131072
    assert made["sequences"]["value"] == 4
    assert made["speculation"]["method"]["value"] == "dflash"
    assert made["tool_parser"]["value"] == "qwen3_coder"


def test_a_context_that_does_not_fit_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    heads = {"num_key_value_heads": 96, "head_dim": 128, "num_hidden_layers": 60}
    make_pair(hybrid=False, **heads)
    write_safetensors(Path("target/model.safetensors"), {"w": ("BF16", (1,))})
    made = plan(capsys, "--no-speculation")["settings"]["context"]
    assert 4096 <= made["value"] < 131072
    assert made["source"] == "hardware"
    asked = plan(capsys, "--no-speculation", "--context", "131072")["settings"]["context"]
    assert (asked["value"], asked["source"]) == (131072, "user")


@pytest.mark.parametrize("heads", [1, 0])
@pytest.mark.parametrize("words", [(), ("--", "--enable-prefix-caching")])
def test_mtp_or_nothing_takes_the_place_of_a_drafter_that_loses_the_cache(
    heads: int, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_pair(hybrid=True, mtp_num_hidden_layers=heads)
    promote()
    made = plan(capsys, *words)
    speculation = made["settings"].get("speculation")
    assert (speculation and speculation["method"]["value"]) == ("mtp" if heads else None)
    assert not heads or speculation["length"]["value"] == 3
    assert made["settings"]["prefix_caching"]["value"] is True
    (note,) = [note for note in made["notes"] if "is not used" in note]
    assert "vllm#54360" in note


def test_mtp_layers_that_a_quantised_build_left_out_are_not_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_pair(hybrid=True, mtp_num_hidden_layers=1)
    write_safetensors(Path("target/model.safetensors"), {"w": ("BF16", (1,))})
    promote()
    assert "speculation" not in plan(capsys)["settings"]


@pytest.mark.parametrize(
    "words",
    [
        ("--drafter", "drafter"),
        ("--k", "3"),
        ("--method", "dflash"),
        ("--", "--spec-tokens", "3"),
    ],
)
def test_a_drafter_that_was_asked_for_stays_with_a_warning(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_pair(hybrid=True, mtp_num_hidden_layers=1)
    promote()
    made = plan(capsys, *words)
    assert made["settings"]["speculation"]["method"]["value"] == "dflash"
    assert made["settings"]["prefix_caching"]["value"] is False
    assert "agent-drafts" in list_codes(made)
    assert not any("is not used" in note for note in made["notes"])
    assert "prefix-cache-on-hybrids" not in list_codes(made)


def test_a_prefix_cache_that_was_turned_off_leaves_the_drafter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_pair(hybrid=True, mtp_num_hidden_layers=1)
    promote()
    made = plan(capsys, "--", "--no-enable-prefix-caching")
    assert made["settings"]["speculation"]["method"]["value"] == "dflash"
    assert made["settings"]["prefix_caching"]["source"] == "user"
    assert "agent-drafts" not in list_codes(made)


def test_a_recipe_without_the_cache_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    make_pair(hybrid=False)
    promote(settings={"prefix_caching": False})
    caching = plan(capsys)["settings"]["prefix_caching"]
    assert (caching["value"], caching["source"]) == (False, "recipe")


def test_a_short_model_keeps_its_own_reason(capsys: pytest.CaptureFixture[str]) -> None:
    make_pair(hybrid=False, context=8192)
    context = plan(capsys, "--drafter", "drafter")["settings"]["context"]
    assert (context["value"], context["source"]) == (8192, "checkpoint")


def test_an_agent_without_a_tool_parser_is_warned(capsys: pytest.CaptureFixture[str]) -> None:
    make_pair(hybrid=False)
    Path("target/chat_template.jinja").write_text("{{ messages }}")
    made = plan(capsys, "--drafter", "drafter")
    assert "tool-parser" in list_codes(made)
    assert not any("tool calls are not parsed" in note for note in made["notes"])
