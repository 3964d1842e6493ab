"""From an order to a run: everything decided, or refused before it begins."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints import read_checkpoint
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from slipstream.training import preparation
from slipstream.training.design import Asked
from slipstream.training.preparation import Order, _settle_schedule, prepare, require_both_sides
from slipstream.training.prompts import Conversation
from slipstream.training.run import TrainRun
from slipstream.training.settings import DrafterDesign, Schedule
from tests.unit.proving_ground.test_untrained_drafter import TARGET as TARGET_CONFIG
from tests.unit.training.pieces import FakeTokenizer, converse, pretend_installed

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET_CONFIG}
ORDER = Order(
    target="target",
    prompts=("prompts.jsonl",),
    from_drafter=None,
    asked=Asked(),
    steps=None,
    learning_rate=None,
    max_tokens=384,
    thinking=None,
    held_out_share=0.1,
    judged_a_kind=24,
    seed=0,
)


@pytest.fixture(autouse=True)
def _workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    target = read_checkpoint("target")
    order = ORDER.model_copy(update=changes)
    return prepare(order, target, command="slipstream train target", on_gpu=on_gpu)


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
    assert [decision.flag for decision in run.decisions] == [
        "--method",
        "--layers",
        "--block-size",
        "--layer-ids",
        "--mask-token-id",
        "--intermediate-size",
        "--steps",
        "--learning-rate",
    ]
    assert run.command == "slipstream train target"


def test_a_row_of_the_embedding_that_no_token_has_is_the_first_choice_for_a_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_installed(monkeypatch, FakeTokenizer(49000, added=(3, 4)))
    assert make()[0].settings.design.mask_token_id == 49000


def test_what_was_ordered_is_in_the_settings() -> None:
    run, _ = make(max_tokens=99, thinking=False, judged_a_kind=7, seed=5, held_out_share=0.2)
    settings = run.settings
    assert (settings.target, settings.prompts) == ("target", ("prompts.jsonl",))
    assert (settings.max_tokens, settings.thinking, settings.judged_a_kind) == (99, False, 7)
    assert (settings.schedule.seed, settings.held_out_share) == (5, 0.2)
    assert settings.from_drafter is None


def test_the_prompts_are_read_and_split_as_they_will_be() -> None:
    _, conversations = make(held_out_share=0.2)
    assert len(conversations) == 20
    assert sum(one.held_out for one in conversations) == 4
    held_out = [{one.id for one in make(seed=seed)[1] if one.held_out} for seed in (0, 0, 1)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_what_the_user_asked_for_is_a_decision_of_the_users() -> None:
    run, _ = make(asked=Asked(layers=2, block_size=5))
    sources = {decision.flag: decision.source for decision in run.decisions}
    assert (sources["--layers"], sources["--block-size"]) == ("user", "user")
    assert sources["--layer-ids"] == "checkpoint"
    assert (run.settings.design.layers, run.settings.design.block_size) == (2, 5)


def test_a_named_inner_size_stands_in_for_one_that_the_target_does_not_give() -> None:
    write_config("target", {**CONFIG, "intermediate_size": None})
    assert refuse().message == "target/config.json gives no intermediate_size"
    run, _ = make(asked=Asked(intermediate_size=512))
    assert run.settings.design.intermediate_size == 512


@pytest.mark.parametrize("method", ["dflash2", "dspark"])
def test_a_gpu_trains_what_a_cpu_does_not(method: str) -> None:
    run, _ = make(on_gpu=True, method=method)
    assert run.settings.design.method == method
    assert run.decisions[0].source == "user"
    assert refuse(method=method).message.startswith(f"{method} is trained on a GPU only: its ")


def test_a_warm_start_keeps_the_design_of_its_drafter() -> None:
    run, _ = make(from_drafter="drafter")
    assert run.settings.design == DrafterDesign(
        layers=4,
        intermediate_size=1536,
        block_size=6,
        target_layer_ids=(2, 9, 15, 21, 28),
        mask_token_id=3,
    )
    _, decision, *others = run.decisions
    assert [other.flag for other in others] == ["--steps", "--learning-rate"]
    assert (decision.flag, decision.value, decision.source) == ("--from", "drafter", "user")
    assert decision.because == "a warm start keeps the design of its drafter"
    assert run.settings.from_drafter == "drafter"


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 1e-3),
        ({"from_drafter": "drafter"}, 3e-4),
        ({"learning_rate": 5e-4}, 5e-4),
        ({"from_drafter": "drafter", "learning_rate": 5e-4}, 5e-4),
    ],
)
def test_a_warm_start_goes_slower_unless_told_otherwise(
    changes: dict[str, Any], rate: float
) -> None:
    assert make(**changes)[0].settings.schedule.learning_rate == rate


def test_without_the_library_that_trains_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "speculators", None)
    with pytest.raises(MissingPartError, match="needed for training: speculators"):
        make(prompts=("missing.jsonl",))


def test_a_target_that_cannot_be_drafted_for_is_refused() -> None:
    write_config("target", {**CONFIG, "architectures": ["AbacusForCausalLM"]})
    assert refuse().message.startswith(
        "vLLM 0.32.0 runs neither DFlash nor EAGLE-3 on AbacusForCausalLM"
    )


def test_prompts_that_are_not_there_are_refused() -> None:
    assert refuse(prompts=("missing.jsonl",)).message == (
        "cannot read missing.jsonl: No such file or directory"
    )


@pytest.mark.parametrize("prompts", [1, 4])
def test_prompts_of_which_none_is_left_to_judge_by_are_refused(prompts: int) -> None:
    Path("prompts.jsonl").write_text("".join(f'"prompt {number}"\n' for number in range(prompts)))
    error = refuse()
    assert error.message == (f"of {prompts} prompts 0 would be held out to judge the drafter by")
    assert error.hint == (
        "give more prompts of different beginnings, or another share with --held-out"
    )


def test_prompts_of_which_none_is_left_to_train_on_are_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        require_both_sides([converse("a", held_out=True), converse("b", held_out=True)])
    assert caught.value.message == "of 2 prompts 2 would be held out to judge the drafter by"


def test_a_design_that_the_target_cannot_serve_is_refused() -> None:
    error = refuse(asked=Asked(target_layer_ids=(2, 30), block_size=1))
    assert error.message == "this drafter cannot be trained for target"
    assert error.details == (
        "layer ids (2, 30) count hidden states; the target has those from 1 to 29",
        "a block of 1 holds no draft token",
    )


def test_a_drafter_that_does_not_fit_is_refused() -> None:
    write_config("drafter", drafter_config({**CONFIG, "hidden_size": 640}, DrafterShape()))
    error = refuse(from_drafter="drafter")
    assert error.message == "drafter cannot be trained further for target"
    assert error.details == ("drafter drafter was made for hidden size 640, but target has 576",)


def test_a_target_is_no_drafter_to_start_from() -> None:
    error = refuse(from_drafter="target")
    assert error.details == ("target is a LlamaForCausalLM, not a drafter",)


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        ("layers", 2),
        ("block_size", 5),
        ("target_layer_ids", (2, 9)),
        ("mask_token_id", 0),
        ("intermediate_size", 512),
    ],
)
def test_a_warm_start_takes_no_word_on_the_design(asked: str, value: object) -> None:
    error = refuse(from_drafter="drafter", asked=Asked.model_validate({asked: value}))
    assert error.message == "a warm start keeps the design of its drafter"
    assert error.hint == (
        "leave out --layers, --block-size, --layer-ids, --mask-token-id and "
        "--intermediate-size, or leave out --from"
    )


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


def hash_prompts(*lines: str, file: str = "prompts.jsonl") -> str:
    """Return the hash of twenty prompts and these."""
    common = [f'"prompt {number}"' for number in range(20)]
    Path(file).write_text("".join(f"{line}\n" for line in (*common, *lines)))
    return make(prompts=(file,))[0].settings.prompts_sha256


def test_other_prompts_have_another_hash() -> None:
    first = hash_prompts('"one"')
    assert len(first) == 64
    assert first == hash_prompts('"one"')
    assert first != hash_prompts('"two"')
    assert first != hash_prompts('"one"', '"two"')


def test_prompts_of_another_kind_have_another_hash() -> None:
    first = hash_prompts('{"prompt": "one", "kind": "code"}')
    assert first != hash_prompts('{"prompt": "one", "kind": "prose"}')
    assert hash_prompts(file="code.jsonl") != hash_prompts(file="prose.jsonl")


def test_the_same_prompts_in_another_order_have_the_same_hash() -> None:
    assert hash_prompts('"one"', '"two"') == hash_prompts('"two"', '"one"')


def settle(**changes: Any) -> tuple[Schedule, dict[str, tuple[str | None, str, str]]]:
    """Settle a schedule; its decisions come as value, source and reason by their flag."""
    made, decisions = _settle_schedule(ORDER.model_copy(update=changes))
    return made, {one.flag: (one.value, one.source, one.because) for one in decisions}


def test_a_schedule_that_nobody_asked_for_is_the_usual_one() -> None:
    made, decisions = settle()
    assert (made.steps, made.learning_rate, made.judge_every) == (8000, 1e-3, 500)
    assert decisions == {
        "--steps": ("8000", "default", "an hour on two threads with AMX"),
        "--learning-rate": ("0.001", "default", "a new drafter"),
    }


def test_a_warm_start_says_why_it_goes_slower() -> None:
    made, decisions = settle(from_drafter="drafter")
    assert (made.steps, made.learning_rate) == (8000, 3e-4)
    assert decisions["--learning-rate"] == ("0.0003", "default", "gentle: a warm start")


@pytest.mark.parametrize("start", [None, "drafter"])
def test_a_schedule_that_was_asked_for_is_the_users(start: str | None) -> None:
    made, decisions = settle(from_drafter=start, steps=50, learning_rate=2e-5)
    assert (made.steps, made.learning_rate) == (50, 2e-5)
    assert decisions == {
        "--steps": ("50", "user", "asked for"),
        "--learning-rate": ("2e-05", "user", "asked for"),
    }


def schedule(steps: int) -> Schedule:
    return settle(steps=steps)[0]


@given(some.integers(1, 100_000))
def test_a_run_is_judged_a_few_times_but_not_all_the_time(steps: int) -> None:
    every = schedule(steps).judge_every
    assert 1 <= every <= 500
    assert steps // every >= min(4, steps)


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (7, 1), (400, 100), (6000, 500)])
def test_a_short_run_is_judged_four_times(steps: int, every: int) -> None:
    assert schedule(steps).judge_every == every


@pytest.mark.parametrize(("steps", "compiled"), [(1, False), (499, False), (500, True)])
def test_only_a_long_run_is_worth_compiling(steps: int, compiled: bool) -> None:
    assert schedule(steps).compiled is compiled
