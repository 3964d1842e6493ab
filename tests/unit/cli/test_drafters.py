"""`drafters`, and `plan` without a recipe, as a user types them and without the hub."""

import json
import shlex
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from slipstream.planning.candidates import DrafterList
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.snapshots import read_snapshot
from tests.unit.checkpoints.folders import LLAMA, drafter_tensors, write_checkpoint

HOSTS = ("gb10", "h100", "rtx-5090")
WELL_KNOWN = (
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "Qwen/Qwen3-Coder-Next",
    "Qwen/Qwen3-Coder-Next-FP8",
    "Qwen/Qwen3.5-4B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.5-35B-A3B",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.6-27B-FP8",
    "Qwen/Qwen3.6-35B-A3B-FP8",
    "Qwen/Qwen3.8-27B",
    "Qwen/Qwen3.8-27B-FP8",
    "google/gemma-4-26B-A4B-it",
    "google/gemma-4-31B-it",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-models/Muse-Glimmer-30B",
    "poolside/Laguna-XS-2.1",
    "zai-org/GLM-5.3-Flash",
)


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no hub, and read no recipe of whoever runs the tests."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def list_drafters(
    target: str, capsys: pytest.CaptureFixture[str], host: str = "gb10"
) -> DrafterList:
    assert run(["drafters", target, "--host", host, "--json"], {}) == 0
    return DrafterList.model_validate_json(capsys.readouterr().out)


def plan(
    target: str, host: str, capsys: pytest.CaptureFixture[str], *words: str
) -> LaunchPlan | str:
    code = run(["plan", target, "--host", host, "--json", *words], {})
    shown = capsys.readouterr()
    if shown.out:
        return LaunchPlan.model_validate_json(shown.out)
    assert code == 1
    error = json.loads(shown.err)["error"]
    return f"{error['message']}; {error['hint']}"


def name_method(made: LaunchPlan) -> str:
    return made.speculation.method.value if made.speculation else "plain"


def test_the_list_shows_rank_verdict_reason_and_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["drafters", "meta-llama/Llama-3.1-8B-Instruct", "--host", "gb10"], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("drafters-llama.txt", shown)


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        ("openai/gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash"),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        ),
        ("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash"),
        ("unsloth/Qwen3-Coder-Next-NVFP4", "z-lab/Qwen3-Coder-Next-DFlash"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
    ],
)
def test_plan_finds_a_drafter_where_no_recipe_names_one(
    target: str, drafter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan(target, "b200", capsys)
    assert isinstance(made, LaunchPlan)
    assert made.recipe is None
    assert made.drafter == drafter
    decision = made.find("--speculative-config.model")
    assert decision is not None
    assert decision.source == "index"
    assert "z-lab made it for" in decision.because


def test_evidence_on_this_kind_of_machine_is_the_first_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = list_drafters("Qwen/Qwen3-Coder-Next", capsys, "gb10").candidates[0]
    assert here.measured_here == ("qwen3-coder-next-nvfp4-gb10",)
    there = list_drafters("Qwen/Qwen3-Coder-Next", capsys, "h100").candidates[0]
    assert there.measured_elsewhere == ("qwen3-coder-next-nvfp4-gb10",)


def test_every_command_that_is_shown_is_a_plan_with_that_drafter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = "meta-llama/Llama-3.3-70B-Instruct"
    listed = list_drafters(target, capsys)
    assert listed.chosen == listed.candidates[0].drafter
    for candidate in listed.candidates:
        words = shlex.split(candidate.command)
        assert words[:3] == ["slipstream", "plan", target]
        made = plan(target, "b300", capsys, *words[3:])
        assert isinstance(made, LaunchPlan)
        assert made.drafter == candidate.drafter


def test_a_folder_finds_its_drafter_by_its_card_and_by_the_users_own_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = write_checkpoint(tmp_path / "tuned", LLAMA)
    (target / "README.md").write_text("---\nbase_model: Qwen/Qwen3-8B\n---\n# Mine\n")
    config = drafter_config(LLAMA, DrafterShape())
    write_checkpoint(tmp_path / "mine", config, tensors=drafter_tensors(config))
    listed = list_drafters("tuned", capsys)
    assert listed.base_models == ("Qwen/Qwen3-8B",)
    first = listed.candidates[0]
    assert (first.drafter, first.match) == ("RedHatAI/Qwen3-8B-speculator.dflash", "base")
    unfit = next(one for one in listed.candidates if one.drafter == "z-lab/Qwen3-8B-DFlash-b16")
    assert unfit.verdict == "does not fit"
    assert "hidden size 4096" in unfit.because


@pytest.mark.parametrize("target", ["nobody/nothing", "not a name"])
def test_an_unknown_target_is_an_error_with_a_hint(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drafters", target], {}) == 1
    assert "hint: " in capsys.readouterr().err


def test_a_target_of_an_unknown_shape_has_no_drafter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "model", LLAMA)
    assert run(["drafters", str(folder)], {}) == 1
    shown = capsys.readouterr().err
    assert f"no known drafter for {folder}" in shown
    assert f"slipstream train {folder}" in shown


def test_well_known_targets_without_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for target in WELL_KNOWN:
        for host in HOSTS:
            made = plan(target, host, capsys)
            if isinstance(made, str):
                rows.append(f"{target} | {host} | none: {made}")
                continue
            memory = made.memory
            size = memory.items[0].size_bytes
            unknown = ", ".join(memory.unknown) or "complete"
            fit = "unknown" if memory.sequences_that_fit is None else memory.sequences_that_fit
            refused = ", ".join(fault.code for fault in made.refusals) or "planned"
            weights = "unknown" if size is None else f"{size / 2**30:.1f} GiB"
            rows.append(
                f"{target} | {host} | {name_method(made)} | {made.drafter} | {weights} | "
                f"{fit} sequences | memory {unknown} | {refused}"
            )
    shown = "\n".join(rows) + "\n"
    assert shown == read_snapshot("well-known-targets.txt", shown)
    complete = [row for row in rows if "memory complete" in row]
    assert len(complete) >= len(rows) * 2 // 3
