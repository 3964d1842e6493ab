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
from slipstream.recipes.recipe import Recipe, RecipeSettings
from slipstream.user_folders import recipe_overlay
from tests.snapshots import read_snapshot
from tests.unit.cli.pairs import write_pair
from tests.unit.hardware.fake_nvml import H100, FakeNvml

QWEN = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"


Capture = pytest.CaptureFixture[str]
SPEC = "--speculative-config"


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return write_pair(tmp_path)


def plan(capsys: Capture, *words: str, code: int = 0) -> LaunchPlan:
    assert run(["plan", "--json", *words], os.environ) == code
    return LaunchPlan.model_validate_json(capsys.readouterr().out)


def save(file: Path, capsys: Capture, machine: str) -> str:
    file.write_text(plan(capsys, QWEN, "--host", machine).to_json())
    return str(file)


@pytest.mark.parametrize(("cpus", "bound"), [(range(8, 16), "8-14"), ((4, 5, 6, 8, 9), "4-6,8")])
def test_plan_binds_the_cpus_of_a_cpuset(
    cpus: tuple[int, ...], bound: str, pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    host = load_host("cpu-server")
    changes = {"usable_threads": len(cpus), "usable_cpus": tuple(cpus)}
    processor = host.processor.model_copy(update=changes)
    machine = tmp_path / "machine.json"
    machine.write_text(host.model_copy(update={"processor": processor}).to_json())
    binding = plan(capsys, *pair, "--host", str(machine)).find("VLLM_CPU_OMP_THREADS_BIND")
    assert binding is not None
    assert binding.value == bound


def test_plan_sizes_from_the_accelerator_that_cuda_shows(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sizes = (80 << 30, 24 << 30)
    devices = [H100 | {"MemoryInfo": SimpleNamespace(total=size, free=size)} for size in sizes]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(devices))
    seen = []
    for value in ("0", "1", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        run(["plan", *pair, "--json"], os.environ)
        made = LaunchPlan.model_validate_json(capsys.readouterr().out)
        seen.append(made.memory.device_bytes)
    assert seen[:2] == list(sizes)
    assert seen[2] not in sizes


def test_a_plan_is_a_command_to_copy(pair: list[str], capsys: Capture) -> None:
    assert run(["plan", *pair, "--host", "h100"], {}) == 0
    shown = capsys.readouterr().out.replace(f"{Path.cwd()}/", "./")
    assert shown == read_snapshot("plan-pair-h100.txt", shown)


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (("-tp", "2"), "tensor_parallel", 2),
        (("--max_model_len", "32K"), "context", 32768),
        (("--served-model-name", "a", "b"), "served_names", ["a", "b"]),
        (("--compilation-config.cudagraph_mode=NONE",), "compilation", {"cudagraph_mode": "NONE"}),
    ],
)
def test_what_follows_the_dashes_is_a_typed_setting_of_the_user(
    words: tuple[str, ...], setting: str, value: object, capsys: Capture
) -> None:
    run(["plan", QWEN, "--host", "gb10", "--json", "--", *words], {})
    told = {"value": value, "source": "user", "because": "set after --"}
    assert json.loads(capsys.readouterr().out)["settings"][setting] == told


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
        settings=RecipeSettings(draft_length=3),
    )
    (overlay / f"{recipe.name}.json").write_text(recipe.to_json())


@pytest.mark.parametrize("target", ["target", "./target", "./target/"])
def test_a_folder_named_from_here_finds_its_recipe(
    pair: list[str], target: str, capsys: Capture
) -> None:
    promote(Path("target"), pair[-1])
    for name in (target, str(Path("target").absolute())):
        made = plan(capsys, name, "--host", "cpu-server")
        assert (made.recipe, made.drafter) == ("target-trained", str(Path("drafter").absolute()))


def test_a_saved_plan_of_folders_named_from_here_works_from_anywhere(
    pair: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    promote(Path("target-2"), pair[-1])
    made = plan(capsys, "~/target", "--drafter", "~/drafter", "--host", "h100")
    assert (made.target, made.recipe) == (str(Path("target").absolute()), None)
    assert made.settings.model.value == made.target
    assert made.drafter == str(Path("drafter").absolute())
    monkeypatch.chdir("/")
    assert plan_plain(made, load_host("h100")).target == made.target


OWN_RECIPE = """
name = "ours"
title = "Qwen3 8B for two users"
target = "Qwen/Qwen3-8B"
drafter = "RedHatAI/Qwen3-8B-speculator.dflash"
machines = ["rtx-4090"]
engine = "vllm"
engine_version = "0.33.0"
settings = {draft_length = 6, sequences = 2}
"""


@pytest.mark.parametrize(("machine", "has_settings"), [("rtx-4090", True), ("rtx-5090", False)])
def test_a_recipe_of_ones_own_comes_first_and_models_says_so(
    machine: str, has_settings: bool, capsys: Capture
) -> None:
    overlay = recipe_overlay(os.environ)
    overlay.mkdir(parents=True, exist_ok=True)
    (overlay / "ours.toml").write_text(OWN_RECIPE)
    made = plan(capsys, "Qwen/Qwen3-8B", "--host", machine)
    assert (made.recipe, made.drafter) == ("ours", "RedHatAI/Qwen3-8B-speculator.dflash")
    sequences = made.settings.sequences
    assert (sequences is not None and sequences.source == "recipe") is has_settings
    assert run(["models", "Qwen/Qwen3-8B", "--host", machine, "--json"], os.environ) == 0
    listed = json.loads(capsys.readouterr().out)["drafters"]
    assert (listed["recipe"], listed["chosen"]) == ("ours", made.drafter)
    assert listed["candidates"][0]["drafter"] == made.drafter


def test_a_setting_that_no_recipe_has_is_answered_with_those_that_there_are(
    capsys: Capture,
) -> None:
    overlay = recipe_overlay(os.environ)
    overlay.mkdir(parents=True, exist_ok=True)
    (overlay / "ours.toml").write_text(OWN_RECIPE.replace("draft_length", "draft_lenght"))
    assert run(["models", "--recipe", "ours"], os.environ) == 1
    assert "settings.draft_lenght: Extra inputs are not permitted; did you mean draft_length?" in (
        capsys.readouterr().err
    )
    (overlay / "ours.toml").write_text(OWN_RECIPE.replace("draft_length", "foo"))
    assert run(["models", "--recipe", "ours"], os.environ) == 1
    assert "; known are batched_tokens, context, " in capsys.readouterr().err


def test_a_refused_plan_leaves_with_1(capsys: Capture) -> None:
    assert run(["plan", QWEN, "--host", "rtx-3090"], {}) == 1
    assert "refused (memory)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("--context", "131072"), "context", "--context 40960"),
        (("--", "--max-model-len", "131072"), "context", "-- --max-model-len 40960"),
        (("--", "-dp", "8"), "accelerators", "-- --data-parallel-size 1"),
    ],
)
def test_a_refusal_names_the_command_that_is_not_refused(
    words: tuple[str, ...], code: str, hint: str, capsys: Capture
) -> None:
    base = ("Qwen/Qwen3-8B", "--host", "h100", "--no-speculation")
    (refusal,) = plan(capsys, *base, *words, code=1).refusals
    assert (refusal.code, refusal.hint) == (code, f"slipstream plan Qwen/Qwen3-8B {hint}")
    assert plan(capsys, *base, *hint.split()).refusals == ()


def test_a_plan_from_the_containers_variables_needs_no_argument(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"MODEL_PATH": QWEN, "DFLASH_NUM_SPEC_TOKENS": "15", "MAX_NUM_SEQS": "16"}
    for name, value in {**variables, "TQ_RING_CAPACITY": "128"}.items():
        monkeypatch.setenv(name, value)
    made = plan(capsys, "--from-env", "--host", "gb10", "--users", "4")
    decisions = [
        made.find(flag)
        for flag in ("--max-num-seqs", "--speculative-config.num_speculative_tokens")
    ]
    assert [(one.value, one.source) for one in decisions if one] == [
        ("4", "user"),
        ("15", "environment"),
    ]
    assert any("TQ_RING_CAPACITY" in note for note in made.notes)


def test_a_drafter_that_a_variable_switches_off_is_not_planned(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_PATH", QWEN)
    monkeypatch.setenv("DFLASH_DRAFTER", "off")
    words = ("--from-env", "--host", "gb10")
    assert plan(capsys, *words).speculation is None
    assert plan(capsys, *words, "--method", "ngram").speculation is not None


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
    verb: str, words: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    saved = save(tmp_path / "saved.json", capsys, "gb10")
    assert run([*verb.split(), saved, *words], {}) == 2
    assert f", without {words[0]}" in capsys.readouterr().err


def test_every_option_of_a_plan_is_known_with_its_default() -> None:
    assert list_plan_options() == {
        **dict.fromkeys(("drafter", "k", "copy", "context", "users", "default_thinking", "vllm")),
        **dict.fromkeys(("from_env", "images", "steer"), False),
        "method": "auto",
        "goal": "latency",
    }


def test_two_saved_plans_are_compared(tmp_path: Path, capsys: Capture) -> None:
    files = [save(tmp_path / machine, capsys, machine) for machine in ("gb10", "b300")]
    assert run(["plan", "--diff", *files], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("plan-diff.txt", shown)
    assert run(["plan", "--diff", files[0], files[0]], {}) == 0
    assert capsys.readouterr().out == "the plans are the same\n"


def test_the_same_plan_is_shown_as_sglangs_command(capsys: Capture) -> None:
    assert run(["plan", "google/gemma-4-31B-it", "--host", "b300", "--sglang"], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("plan-sglang.txt", shown)


def test_sglangs_dflash_is_refused_for_a_cpu(capsys: Capture) -> None:
    assert run(["plan", "Qwen/Qwen3-4B", "--host", "cpu-server", "--sglang"], {}) == 1
    assert "has dflash on GPUs only, and this plan is for a CPU" in capsys.readouterr().err
    plain = ["plan", "Qwen/Qwen3-4B", "--host", "cpu-server", "--sglang", "--no-speculation"]
    assert run(plain, {}) == 0
    assert "--speculative" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "hint: slipstream plan TARGET\n"),
        (["nobody/nothing", "--no-speculation"], 1, "HF_HUB_OFFLINE"),
        ([QWEN, "--k", "0"], 2, "argument --k: '0'"),
        ([QWEN, "--users", "-4"], 2, "argument --users: '-4'"),
        ([QWEN, "--context", "0"], 2, "argument --context: '0'"),
        ([QWEN, "--users", "many"], 2, "argument --users: 'many'"),
        ([QWEN, "--no-speculation", "--method", "ngram"], 2, "--method: not allowed with"),
        ([QWEN, "--", "--max-model-length", "9"], 2, "hint: --max-model-len"),
        ([QWEN, "--", "--model", "another/model"], 2, "hint: slipstream plan another/model"),
        ([QWEN, "--", "--gpu-memory-utilization", "1.5"], 2, "--gpu-memory-utilization"),
        ([QWEN, "--", "--spec-tokens=3", f"{SPEC}.num_speculative_tokens=4"], 2, "combined"),
        ([QWEN, "--", "stray"], 2, "'stray' is not a value"),
        ([QWEN, "--host", "gb10", "--", "--spec-model", "me/mine"], 1, "me/mine"),
    ],
)
def test_what_cannot_be_planned_is_told(
    words: list[str], code: int, told: str, capsys: Capture
) -> None:
    assert run(["plan", *words], {}) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        ("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"),
        ("meta-llama/Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
        ("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash"),
        ("unsloth/Qwen3-Coder-Next-NVFP4", "z-lab/Qwen3-Coder-Next-DFlash"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
    ],
)
def test_plan_finds_a_drafter_where_no_recipe_names_one(
    target: str, drafter: str, capsys: Capture
) -> None:
    made = plan(capsys, target, "--host", "b200")
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


def test_well_known_targets_without_a_hub(capsys: Capture) -> None:
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


def test_a_context_for_no_conversation_is_refused_first(capsys: Capture) -> None:
    assert run(["plan", "Qwen/Qwen3-8B", "--host", "h100", "--context", "10"], os.environ) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("refused (context): a context of 10 tokens ")
    assert "--model" not in shown
    words = ["plan", "Qwen/Qwen3-8B", "--host", "h100", "--context", "10", "--explain"]
    assert run(words, os.environ) == 1
    assert "--max-model-len 10" in capsys.readouterr().out
