"""`inspect`, `recipes` and `plan` as a user types them, without the hub."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import slipstream
from slipstream.cli.main import run
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from slipstream.recipes.recipe import Recipe, Settings
from slipstream.user_folders import recipe_overlay
from tests.snapshots import read_snapshot
from tests.unit.hardware.fake_nvml import H100, FakeNvml
from tests.unit.proving_ground.test_untrained_drafter import TARGET as TARGET_CONFIG

SOURCE = Path(slipstream.__file__).parent
# What follows the target in a command that a hint or a document gives.
INSPECT_HINT = re.compile(r"slipstream inspect (?:TARGET|\{[\w.]+\})(?: ([-A-Z{]\S*))?")
QWEN = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no hub, and read no recipe of whoever runs the tests."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Lay a target and a drafter out as folders, named without the machine's own path."""
    monkeypatch.chdir(tmp_path)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET_CONFIG}
    for name, content in (("target", config), ("drafter", drafter_config(config, DrafterShape()))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    return "./target", "./drafter"


@pytest.mark.parametrize(
    ("cpus", "bound"),
    [(range(8, 16), "8-14"), ((4, 5, 6, 8, 9), "4-6,8")],
)
def test_plan_binds_the_cpus_of_a_cpuset(
    cpus: tuple[int, ...],
    bound: str,
    pair: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host = load_host("cpu-server")
    changes = {"usable_threads": len(cpus), "usable_cpus": tuple(cpus)}
    processor = host.processor.model_copy(update=changes)
    machine = tmp_path / "machine.json"
    machine.write_text(host.model_copy(update={"processor": processor}).to_json())
    words = ["plan", pair[0], "--drafter", pair[1], "--host", str(machine), "--json"]
    assert run(words, {}) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    binding = plan.find("VLLM_CPU_OMP_THREADS_BIND")
    assert binding is not None
    assert binding.value == bound


def test_plan_sizes_from_the_accelerator_that_cuda_shows(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = (80 << 30, 24 << 30)
    devices = [H100 | {"MemoryInfo": SimpleNamespace(total=size, free=size)} for size in sizes]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(devices))
    seen = []
    for value in ("0", "1", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        run(["plan", pair[0], "--drafter", pair[1], "--json"], os.environ)
        plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
        seen.append(plan.memory.device_bytes)
    assert seen[:2] == list(sizes)
    assert seen[2] not in sizes


def test_inspect_shows_a_pair_that_fits(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", pair[0], "--drafter", pair[1]], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("inspect-pair.txt", shown)


def test_a_drafter_is_an_option_of_inspect_as_of_every_verb(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", *pair], {}) == 2
    assert pair[1] in capsys.readouterr().err
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml"), *SOURCE.parents[1].glob("docs/*.md")]
    hints = [hint for file in files for hint in INSPECT_HINT.findall(file.read_text())]
    assert len(hints) > 10
    assert [words for words in hints if words and not words.startswith("--")] == []


def test_inspect_leaves_with_1_when_a_pair_does_not_fit(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", pair[0], "--drafter", pair[1], "--k", "12"], {}) == 1
    shown = capsys.readouterr().out
    assert "they do not fit: draft-length" in shown
    assert "refused (draft-length): 12 draft tokens were asked for" in shown


def test_inspect_gives_a_checkpoint_as_json(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", pair[0], "--json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "LlamaForCausalLM"


def test_recipes_are_listed_by_target_and_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "--target", "*gemma-4-31b*", "--host", "gb10"], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("recipes-gemma-gb10.txt", shown)


def test_one_recipe_is_shown_with_who_measured_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "--show", "qwen3.5-27b-nvfp4-gb10"], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("recipe-qwen3.5-27b.txt", shown)


@pytest.mark.parametrize("arguments", [["--target", "nobody/*"], ["--show", "nothing"]])
def test_no_recipe_is_an_error_with_the_list_as_hint(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["recipes", *arguments], {}) == 1
    assert capsys.readouterr().err.endswith("hint: slipstream recipes\n")


def test_recipes_are_one_document_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "--json"], {}) == 0
    assert len(json.loads(capsys.readouterr().out)["recipes"]) >= 40


def test_a_plan_is_a_command_to_copy(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", pair[0], "--drafter", pair[1], "--host", "h100"]
    assert run(arguments, {}) == 0
    shown = capsys.readouterr().out.replace(f"{Path.cwd()}/", "./")
    assert shown == read_snapshot("plan-pair-h100.txt", shown)


def test_a_plan_for_this_machine_takes_raw_arguments(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", pair[0], "--drafter", pair[1], "--json", "--", "--port", "9000"]
    assert run(arguments, {}) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert plan.find("--port") is not None
    assert "--explain" not in plan.argv()


def promote(target: Path, drafter: str) -> None:
    """Leave a recipe as `train --promote` does: folders by their whole paths."""
    overlay = recipe_overlay(os.environ)
    overlay.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(
        name=f"{target.name}-trained",
        title="a pair of one's own",
        target=str(target.absolute()),
        drafter=str(Path(drafter).absolute()),
        machines=("cpu",),
        engine="vllm",
        engine_version="0.32.0",
        settings=Settings(draft_length=3),
    )
    (overlay / f"{recipe.name}.json").write_text(recipe.to_json())


@pytest.mark.parametrize("target", ["target", "./target", "./target/"])
def test_a_folder_named_from_here_finds_its_recipe(
    pair: tuple[str, str], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    promote(Path("target"), pair[1])
    for name in (target, str(Path("target").absolute())):
        assert run(["plan", name, "--host", "cpu-server", "--json"], {}) == 0
        plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
        assert (plan.recipe, plan.drafter) == ("target-trained", str(Path("drafter").absolute()))


def test_a_folder_without_a_recipe_keeps_the_name_that_was_typed(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    promote(Path("target-2"), pair[1])
    assert run(["plan", pair[0], "--no-speculation", "--host", "h100", "--json"], {}) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert (plan.target, plan.recipe) == ("./target", None)


def test_a_refused_plan_leaves_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", QWEN, "--host", "rtx-3090"], {}) == 1
    assert "refused (memory)" in capsys.readouterr().out


def test_a_plan_from_the_containers_variables_needs_no_argument(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_PATH", QWEN)
    monkeypatch.setenv("DFLASH_NUM_SPEC_TOKENS", "15")
    monkeypatch.setenv("MAX_NUM_SEQS", "16")
    monkeypatch.setenv("TQ_RING_CAPACITY", "128")
    assert run(["plan", "--from-env", "--host", "gb10", "--users", "4", "--json"], {}) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    sequences, drafted = (
        plan.find("--max-num-seqs"),
        plan.find("--speculative-config.num_speculative_tokens"),
    )
    assert sequences is not None
    assert drafted is not None
    assert (sequences.value, sequences.source) == ("4", "user")
    assert (drafted.value, drafted.source) == ("15", "environment")
    assert any("TQ_RING_CAPACITY" in note for note in plan.notes)


def test_two_saved_plans_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for machine in ("gb10", "b300"):
        run(["plan", QWEN, "--host", machine, "--json"], {})
        files.append(tmp_path / f"{machine}.json")
        files[-1].write_text(capsys.readouterr().out)
    assert run(["plan", "--diff", *map(str, files)], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("plan-diff.txt", shown)
    assert run(["plan", "--diff", str(files[0]), str(files[0])], {}) == 0
    assert capsys.readouterr().out == "the plans are the same\n"


def test_the_same_plan_is_shown_as_sglangs_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "google/gemma-4-31B-it", "--host", "b300", "--sglang"], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("plan-sglang.txt", shown)


def test_sglangs_dflash_is_refused_for_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "Qwen/Qwen3-4B", "--host", "cpu-server", "--sglang"], {}) == 1
    assert "has dflash on GPUs only, and this plan is for a CPU" in capsys.readouterr().err
    plain = ["plan", "Qwen/Qwen3-4B", "--host", "cpu-server", "--sglang", "--no-speculation"]
    assert run(plain, {}) == 0
    assert "--speculative" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--k", "0"], ["--users", "-4"], ["--context", "0"], ["--users", "many"]]
)
def test_a_number_that_is_none_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", QWEN, "--host", "gb10", *arguments], {}) == 2
    shown = capsys.readouterr().err
    assert shown == (
        f"error: argument {arguments[0]}: '{arguments[1]}' is not a whole number above zero\n"
        "\nhint: slipstream plan --help\n"
    )


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["A"], "num_hidden_layers": "many"},
        {"architectures": ["A"], "vocab_size": "big"},
        {"architectures": 7},
        {"rope_parameters": "linear"},
    ],
)
def test_a_config_that_describes_no_model_is_an_error_of_the_file(
    config: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["inspect", str(tmp_path)], {}) == 1
    assert f"the files of {tmp_path} do not describe a model" in capsys.readouterr().err


def test_a_plan_without_a_target_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan"], {}) == 2
    assert capsys.readouterr().err.endswith("hint: slipstream plan TARGET\n")


def test_a_target_that_nobody_knows_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "nobody/nothing", "--no-speculation"], {}) == 1
    assert (
        "nobody/nothing is not in the cache, and HF_HUB_OFFLINE forbids" in capsys.readouterr().err
    )
