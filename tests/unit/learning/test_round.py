"""A round's work on a tiny target: what is read, trained, evaluated, saved, and taken up again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.learning import candidate
from slipstream.learning.candidate import Round, RoundState, begin_work, find_gain, read_work
from slipstream.learning.deciding import PROBE_STEPS, choose_text, settle_schedule
from slipstream.learning.kept_text import KeptAnswer, decode, encode
from slipstream.training.cpu.models import build_model, load_model, save_model
from slipstream.training.run import DrafterDesign

# torch and transformers warn of each other when they are imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

DESIGN = DrafterDesign(
    layers=1, intermediate_size=64, block_size=4, target_layer_ids=(2, 4), mask_token_id=3
)
ANSWERS, TOKENS, STEPS = 60, 24, 60


class Ended(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target of 6 layers that was never trained, and a drafter for it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
    )
    target = LlamaForCausalLM(config)
    with torch.no_grad():  # So that what it says next follows from what stands there.
        for weight in target.parameters():
            if weight.dim() > 1:
                weight.mul_(5)
    target.save_pretrained(folder / "target")
    save_model(build_model(folder / "target", DESIGN, "float32"), folder / "drafter", verifier="t")
    return folder / "target", folder / "drafter"


@pytest.fixture(scope="module")
def answers(pair: tuple[Path, Path]) -> list[KeptAnswer]:
    """Return what the target answers to questions of four tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    questions = torch.randint(10, 250, (ANSWERS, 4), generator=torch.Generator().manual_seed(1))
    texts = model.generate(questions, max_new_tokens=TOKENS, do_sample=False, eos_token_id=255)
    return [make(row.tolist()) for row in texts]


def make(tokens: list[int]) -> KeptAnswer:
    record = encode("code", 100, tokens[:4], tokens[4:])
    assert record is not None
    return decode(record)


def begin(
    folder: Path, pair: tuple[Path, Path], answers: list[KeptAnswer], dtype: str = "float32"
) -> Path:
    material = choose_text(answers, 0, context=512)
    assert material is not None
    schedule = settle_schedule(material.new_tokens, STEPS, seed=0)
    small = {"rows": 2, "context": 64, "anchors": 8, "learning_rate": 1e-2}
    work = RoundState(
        round=1,
        number=1,
        parent=0,
        drafter=pair[1],
        target=pair[0],
        target_name="tiny",
        dtype=dtype,
        data_sha256=material.sha256,
        until=material.until,
        held_out=len(material.held_out),
        answers=len(material.held_out) + len(material.training),
        new_tokens=material.new_tokens,
        replayed_tokens=material.replayed_tokens,
        shares={"code": 1.0},
        schedule=schedule.model_copy(update=small),
    )
    begin_work(folder / "work", work, material)
    return folder / "work"


def test_a_round_is_probed_trained_and_saved_and_done_once(
    tmp_path: Path, pair: tuple[Path, Path], answers: list[KeptAnswer]
) -> None:
    said: list[str] = []
    folder = begin(tmp_path, pair, answers)
    first = Round(folder, said.append)
    gain = first.probe()
    assert gain is not None
    assert gain > 0.03
    first.train()
    best = first.work.best
    assert best is not None
    assert find_gain(first.work.before or {}, best.walked, {}) > 0
    load_model(first.drafter, pair[0], "float32")
    assert first.work.dropped == 0
    assert first.work.seconds > 0
    count = len(said)
    again = Round(folder, said.append)
    assert again.probe() == gain
    again.train()
    assert (again.work, len(said)) == (first.work, count)
    assert read_work(folder) == first.work


def test_a_round_that_was_cut_off_goes_on_from_its_checkpoint(
    tmp_path: Path,
    pair: tuple[Path, Path],
    answers: list[KeptAnswer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidate, "CHECKPOINT_EVERY_SECONDS", 0.0)
    folder = begin(tmp_path, pair, answers, "bfloat16")
    steps: list[int] = []

    def cut_off(at: int) -> Callable[..., Any]:
        def train(*arguments: Any, **named: Any) -> None:
            *places, _, evaluate = arguments

            def report(step: int, _: float) -> None:
                steps.append(step)
                if len(steps) == at:
                    raise Ended

            inner(*places, report, evaluate, **named)

        return train

    inner: Callable[..., None] = vars(candidate)["train"]
    monkeypatch.setattr(candidate, "train", cut_off(at=5))
    with pytest.raises(Ended):
        Round(folder, lambda _: None).probe()
    monkeypatch.setattr(candidate, "train", cut_off(at=5 + PROBE_STEPS - 4 + 15))
    under_way = Round(folder, lambda _: None)
    under_way.probe()
    with pytest.raises(Ended):
        under_way.train()
    assert under_way.work.curve
    monkeypatch.setattr(candidate, "train", cut_off(at=0))
    last = Round(folder, lambda _: None)
    last.probe()
    last.train()
    assert last.work.is_trained
    # The step that was under way is done again, and none before it.
    assert steps[:6] == [1, 2, 3, 4, 5, 5]
    assert [one.step for one in last.work.curve] == sorted({one.step for one in last.work.curve})


def test_text_that_is_not_the_targets_is_dropped(
    tmp_path: Path, pair: tuple[Path, Path], answers: list[KeptAnswer]
) -> None:
    strange = [
        make([10 + n, 11, 12, 13, *((7 * n + 31 * at * at) % 240 + 10 for at in range(TOKENS))])
        for n in range(60)
    ]
    folder = begin(tmp_path / "alone", pair, strange)
    alone = Round(folder, lambda _: None)
    assert alone.probe() is None
    assert alone.work.dropped == alone.work.answers
    mixed = Round(begin(tmp_path / "mixed", pair, [*answers, *strange]), lambda _: None)
    assert mixed.probe() is not None
    assert mixed.work.dropped is not None
    assert 0.4 < mixed.work.dropped / mixed.work.answers < 0.6
