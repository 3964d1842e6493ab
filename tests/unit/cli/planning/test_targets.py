"""What a user types for a model: folders, paths, names without owners, recipes, GGUF."""

import json
import os
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from tests.unit.cli.pairs import CONFIG, write_pair

Capture = pytest.CaptureFixture[str]


def find_hint(capsys: Capture) -> str:
    return capsys.readouterr().err.split("hint: ")[1].strip()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("plan", "qwen3-8bb"), "slipstream plan Qwen/Qwen3-8B"),
        (("plan", "qwen3-8b-fp8"), "slipstream plan Qwen/Qwen3-8B"),
        (("models", "gpt-os-20b"), "slipstream plan openai/gpt-oss-20b"),
        (("plan", "unsloth/Qwen3-8B-GGUF"), "slipstream plan Qwen/Qwen3-8B"),
        (("plan", "unsloth/Qwen3-8B-GGUF:Q4_K_M"), "slipstream plan Qwen/Qwen3-8B"),
        (("plan", "Qwen3-8B-Q4_K_M.gguf"), "slipstream plan Qwen/Qwen3-8B"),
        (("plan", "nobody/Nothing-GGUF"), "slipstream models"),
        (("plan", "Qwen/Qwen3-8B", "--drafter", "a/b-GGUF"), "slipstream models"),
        (
            ("plan", "gemma-4-31b-it-b300"),
            "slipstream plan google/gemma-4-31B-it --drafter z-lab/gemma-4-31B-it-DFlash "
            "--host b300",
        ),
    ],
)
def test_a_name_that_is_no_model_gets_the_command_for_one(
    words: tuple[str, ...], hint: str, capsys: Capture
) -> None:
    assert run(words, os.environ) == 1
    assert find_hint(capsys) == hint


def test_a_model_of_the_catalogue_is_found_without_its_owner(capsys: Capture) -> None:
    run(["plan", "qwen3-8b", "--host", "h100", "--json"], os.environ)
    assert LaunchPlan.model_validate_json(capsys.readouterr().out).target == "Qwen/Qwen3-8B"


def test_a_recipe_is_shown_by_its_name_alone(capsys: Capture) -> None:
    assert run(["models", "gemma-4-31b-it-b300"], os.environ) == 0
    alone = capsys.readouterr().out
    assert run(["models", "--recipe", "gemma-4-31b-it-b300"], os.environ) == 0
    assert alone == capsys.readouterr().out
    assert "evidence:" in alone


def test_weights_as_gguf_are_refused_as_such(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "Qwen3-8B-Q8_0.gguf"
    file.write_bytes(b"GGUF")
    assert run(["plan", str(folder)], os.environ) == 1
    assert find_hint(capsys) == "slipstream models"
    (folder / "README.md").write_text("---\nbase_model: Qwen/Qwen3-8B\n---\n")
    assert run(["plan", str(folder)], os.environ) == 1
    assert find_hint(capsys) == "slipstream plan Qwen/Qwen3-8B"
    assert run(["serve", str(file), "--dry-run"], os.environ) == 1
    assert find_hint(capsys) == "slipstream plan Qwen/Qwen3-8B"


@pytest.mark.parametrize("home", [True, False])
def test_paths_after_the_dashes_mean_the_same_in_every_folder(
    home: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_pair(tmp_path)
    (tmp_path / "tokens").mkdir()
    start = "~/" if home else ""
    speculation = json.dumps({"method": "dflash", "model": f"{start}drafter"})
    words = ["--tokenizer", f"{start}tokens", "--chat-template", "./new.jinja", "--model", "target"]
    words += ["--hf-config-path", "owner/model", "--speculative-config", speculation]
    run(["plan", f"{start}target", "--host", "h100", "--json", "--", *words], os.environ)
    made = LaunchPlan.model_validate_json(capsys.readouterr().out)
    rest = {flag: choice.value for flag, choice in made.settings.rest.items()}
    assert rest == {
        "--tokenizer": str(tmp_path / "tokens"),
        "--chat-template": str(tmp_path / "new.jinja"),
        "--hf-config-path": "owner/model",
    }
    paths = {made.target, made.settings.model.value, made.drafter}
    assert paths == {str(tmp_path / "target"), str(tmp_path / "drafter")}


def test_a_drafter_in_the_users_defaults_may_be_in_their_home(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_pair(tmp_path)
    config = tmp_path / "config" / "slipstream" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[plan]\ndrafter = "~/drafter"\n')
    config.chmod(0o600)
    assert run(["plan", "target", "--host", "h100", "--json"], os.environ) == 0
    made = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert made.drafter == str(tmp_path / "drafter")


def test_a_model_too_big_for_a_machine_without_an_accelerator_names_the_demo(
    capsys: Capture,
) -> None:
    assert run(["plan", "Qwen/Qwen3-32B", "--host", "cpu-server", "--json"], os.environ) == 1
    made = LaunchPlan.model_validate_json(capsys.readouterr().out)
    (refusal,) = (fault for fault in made.refusals if fault.code == "memory")
    assert refusal.hint.endswith(", or slipstream demo")
