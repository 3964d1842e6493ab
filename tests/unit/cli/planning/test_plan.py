"""`plan` as a user types it, without the hub."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.cli.main import run
from slipstream.cli.planning.plan import list_plan_options, plan_plain
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from slipstream.recipes.recipe import Recipe, Settings
from slipstream.user_folders import recipe_overlay
from tests.snapshots import read_snapshot
from tests.unit.hardware.fake_nvml import H100, FakeNvml
from tests.unit.proving_ground.test_untrained_drafter import TARGET as TARGET_CONFIG

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


def test_a_saved_plan_of_folders_named_from_here_works_from_anywhere(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    promote(Path("target-2"), pair[1])
    words = ["plan", "~/target", "--drafter", "~/drafter", "--host", "h100", "--json"]
    assert run(words, {}) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert (plan.target, plan.recipe) == (str(Path("target").absolute()), None)
    assert plan.settings.model.value == plan.target
    assert plan.drafter == str(Path("drafter").absolute())
    monkeypatch.chdir("/")
    assert plan_plain(plan, load_host("h100")).target == plan.target


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


def test_a_drafter_that_a_variable_switches_off_is_not_planned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_PATH", QWEN)
    monkeypatch.setenv("DFLASH_DRAFTER", "off")
    assert run(["plan", "--from-env", "--host", "gb10", "--json"], {}) == 0
    assert LaunchPlan.model_validate_json(capsys.readouterr().out).speculation is None
    words = ["plan", "--from-env", "--host", "gb10", "--method", "ngram", "--json"]
    assert run(words, {}) == 0
    assert LaunchPlan.model_validate_json(capsys.readouterr().out).speculation is not None


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("compare", ("--goal", "throughput")),
        ("deploy kubernetes", ("--goal", "throughput")),
        ("compare", ("--method", "ngram")),
        ("verify", ("--users", "3")),
        ("verify", ("--from-env",)),
        ("tune", ("--k", "3")),
        ("tune", ("--", "--seed", "1")),
    ],
)
def test_no_option_that_makes_a_plan_changes_a_saved_one(
    verb: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["plan", QWEN, "--host", "gb10", "--json"], {})
    saved = tmp_path / "saved.json"
    saved.write_text(capsys.readouterr().out)
    assert run([*verb.split(), str(saved), *words], {}) == 2
    assert f"a saved plan cannot be changed, without {words[0]}" in capsys.readouterr().err


def test_every_option_of_a_plan_is_known_with_its_default() -> None:
    assert list_plan_options() == {
        **dict.fromkeys(("drafter", "k", "context", "users", "default_thinking")),
        **dict.fromkeys(("from_env", "pictures"), False),
        "method": "auto",
        "goal": "latency",
    }


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
    assert f"argument {arguments[0]}: '{arguments[1]}'" in capsys.readouterr().err


def test_a_plan_without_a_target_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan"], {}) == 2
    assert capsys.readouterr().err.endswith("hint: slipstream plan TARGET\n")


def test_a_target_that_nobody_knows_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "nobody/nothing", "--no-speculation"], {}) == 1
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err


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
    assert run(["plan", target, "--host", "b200", "--json"], {}) == 0
    made = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert made.recipe is None
    assert made.drafter == drafter
    decision = made.find("--speculative-config.model")
    assert decision is not None
    assert decision.source == "index"
    assert "z-lab made it for" in decision.because


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


def test_well_known_targets_without_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for target in WELL_KNOWN:
        for host in HOSTS:
            run(["plan", target, "--host", host, "--json"], {})
            made = LaunchPlan.model_validate_json(capsys.readouterr().out)
            memory = made.memory
            method = made.speculation.method.value if made.speculation else "plain"
            size = memory.items[0].size_bytes
            unknown = ", ".join(memory.unknown) or "complete"
            fit = "unknown" if memory.sequences_that_fit is None else memory.sequences_that_fit
            refused = ", ".join(fault.code for fault in made.refusals) or "planned"
            weights = "unknown" if size is None else f"{size / 2**30:.1f} GiB"
            rows.append(
                f"{target} | {host} | {method} | {made.drafter} | {weights} | "
                f"{fit} sequences | memory {unknown} | {refused}"
            )
    shown = "\n".join(rows) + "\n"
    assert shown == read_snapshot("well-known-targets.txt", shown)
    complete = [row for row in rows if "memory complete" in row]
    assert len(complete) >= len(rows) * 2 // 3
