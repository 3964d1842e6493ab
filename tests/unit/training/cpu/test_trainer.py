"""A step's softmax runs over every target, the frequent tokens and a fresh draw of the rest."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.training.cpu import trainer
from slipstream.training.cpu.batches import Geometry, TrainSample
from slipstream.training.cpu.trainer import DRAWN_TOKENS, FREQUENT_TOKENS, Candidates, train
from slipstream.training.run import Schedule

VOCABULARY = 12_000


def count(tokens: list[int], vocabulary: int = VOCABULARY, seed: int = 0) -> Candidates:
    """Count a sample whose prompt is token 7 and whose response is `tokens`."""
    sample = TrainSample(tokens=np.array([7, *tokens]), response_start=1, number=0)
    return Candidates.count([sample], vocabulary, np.random.default_rng(seed))


def test_the_module_is_read_without_torch() -> None:
    code = f"import sys, {trainer.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(some.integers(1, VOCABULARY), some.integers(0, 1000), some.data())
def test_every_target_is_a_candidate_and_no_token_is_one_twice(
    size: int, seed: int, data: some.DataObject
) -> None:
    """A small vocabulary is taken whole."""
    targets = data.draw(some.lists(some.integers(-1, size - 1), min_size=1, max_size=DRAWN_TOKENS))
    tokens, places = count([0], vocabulary=size, seed=seed).pick(np.array(targets))
    expected = min(size, FREQUENT_TOKENS + DRAWN_TOKENS)
    assert len(np.unique(tokens)) == len(tokens) == expected
    assert [-1 if place < 0 else int(tokens[place]) for place in places] == targets


def test_targets_beyond_the_draw_are_not_counted_and_the_shape_stays() -> None:
    choice = count([5])
    rare = choice.rest[: DRAWN_TOKENS + 10]
    tokens, places = choice.pick(np.array(rare))
    assert len(tokens) == FREQUENT_TOKENS + DRAWN_TOKENS
    assert (places < 0).sum() == 10


def test_the_frequent_tokens_are_those_of_responses_the_commonest_first() -> None:
    choice = count([900, 800, 900, 11_000])
    assert choice.frequent[:3].tolist() == [900, 800, 11_000]
    assert len(choice.frequent) == FREQUENT_TOKENS
    # Token 7 stands in the prompt alone: it fills up like any other.
    assert choice.frequent[3:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted([*choice.frequent, *choice.rest]) == list(range(VOCABULARY))


def test_the_rest_is_drawn_anew_for_every_step() -> None:
    choice = count([5])
    (first, _), (second, _) = (choice.pick(np.array([5])) for _ in range(2))
    assert set(first) & set(second) >= set(choice.frequent)
    assert set(first) != set(second)


WIDTH, TOKENS = 16, 30


def make_drafter(seed: int) -> Any:
    """Make a drafter of a few hundred weights that reads its block and the states before it."""
    import torch

    torch.manual_seed(seed)

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mix = torch.nn.Linear(2 * WIDTH, WIDTH)
            self.places = torch.nn.Parameter(torch.randn(4, WIDTH))

        def forward(
            self, hidden_states: Any, target_hidden: Any, attention_mask: Any, **_: Any
        ) -> Any:
            seen = (attention_mask == 0).to(target_hidden.dtype) @ target_hidden
            context = seen[:, :, None] + self.places
            return self.mix(torch.cat([hidden_states, context.flatten(1, 2)], -1)).tanh()

    class Drafter(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(2, WIDTH, bias=False)
            self.layers = torch.nn.ModuleList([Layer()])
            self.norm, self.hidden_norm = torch.nn.LayerNorm(WIDTH), torch.nn.Identity()
            self.embed_tokens = torch.nn.Embedding(TOKENS, WIDTH).requires_grad_(False)
            self.lm_head = torch.nn.Linear(WIDTH, TOKENS, bias=False).requires_grad_(False)
            torch.nn.init.normal_(self.lm_head.weight)
            self.config = SimpleNamespace(speculators_model_type="dflash")
            self.feature_scale, self.dtype = torch.ones(2), torch.float32

        def rotary_emb(self, *_: Any) -> None:
            """Leave positions to the layer."""

    return Drafter()


class RandomStates:
    """Random states of eleven tokens, as bfloat16."""

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        values = np.random.default_rng(number).standard_normal((11, 2)).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16)


class Training:
    """A few real steps over one text, and what they reported."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.losses: list[float] = []
        self.steps: list[int] = []
        self.judged: list[int] = []

    def report(self, step: int, loss: float) -> None:
        self.steps.append(step)
        self.losses.append(loss)

    def run(self, model: Any, steps: int, rate: float = 0.05) -> None:
        tokens = np.random.default_rng(3).permutation(TOKENS)[:11]
        samples = [TrainSample(tokens=tokens, response_start=2, number=0)]
        train(
            model,
            samples,
            RandomStates(),
            Geometry(rows=1, context=16, anchors=8, block=4, mask_token=3),
            Schedule(steps=steps, learning_rate=rate, judge_every=10, compiled=False),
            self.checkpoint,
            self.report,
            lambda step, _: self.judged.append(step),
        )


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    # Importing speculators takes longer than all of this; tests/engine trains with its weights.
    even = SimpleNamespace(dpace_loss_decay=lambda *, loss_mask, **_: loss_mask)
    monkeypatch.setitem(sys.modules, "speculators", SimpleNamespace(losses=even))
    monkeypatch.setitem(sys.modules, "speculators.losses", even)
    return Training(tmp_path / "checkpoint.pt")


def test_a_text_is_learned_and_some_steps_are_judged(training: Training) -> None:
    training.run(make_drafter(0), 40)
    assert training.steps == list(range(1, 41))
    assert training.judged == [10, 20, 30, 40]
    assert training.losses[-1] < training.losses[0] / 4


def test_training_goes_on_from_its_checkpoint(training: Training) -> None:
    first, other = make_drafter(0), make_drafter(1)
    other.embed_tokens, other.lm_head = first.embed_tokens, first.lm_head  # the target's
    training.run(first, 40)
    training.run(other, 41)
    # One more step, of another model with the weights that were saved.
    assert training.steps[40:] == [41]
    assert training.losses[40] == pytest.approx(training.losses[39], rel=0.5)
    assert training.losses[40] < training.losses[0] / 2
    for one, same in zip(first.parameters(), other.parameters(), strict=True):
        assert (one - same).abs().max() < 0.1


def test_a_loss_that_is_not_finite_ends_the_training_with_a_hint(training: Training) -> None:
    with pytest.raises(InvalidInputError, match="the loss is nan at step 2") as caught:
        training.run(make_drafter(0), 9, rate=float("inf"))
    assert "--learning-rate" in caught.value.hint
    # Neither judged nor kept: what is left is a model of no use.
    assert training.steps == [1]
    assert not training.checkpoint.exists()
