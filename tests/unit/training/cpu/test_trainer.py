"""Real steps of a tiny drafter: it learns, goes on from its checkpoint, and stops at nonsense."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.errors import InvalidInputError
from slipstream.training.cpu import trainer
from slipstream.training.cpu.batches import CHOICES, Floats, Geometry, Numbers, TrainSample
from slipstream.training.cpu.trainer import train
from slipstream.training.run import Schedule

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


def make_text() -> Numbers:
    return np.random.default_rng(3).permutation(TOKENS)[:11]


class RandomStates:
    """Random states of eleven tokens, as bfloat16."""

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        values = np.random.default_rng(number).standard_normal((11, 2)).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    def read_choices(self, number: int) -> tuple[Numbers, Floats]:
        """Return choices of which the next token of the text is the likeliest."""
        chance = np.random.default_rng(number + 1)
        text = np.append(make_text()[1:], 0)
        others = np.stack([chance.choice(TOKENS, CHOICES - 1, replace=False) for _ in text])
        shares = np.sort(chance.dirichlet(np.ones(CHOICES), len(text)), 1)[:, ::-1]
        return np.column_stack([text, others]), shares.astype(np.float32)


def test_the_module_is_read_without_torch() -> None:
    code = f"import sys, {trainer.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Training:
    """A few real steps over one text, and what they reported."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.losses: list[float] = []
        self.steps: list[int] = []
        self.evaluated: list[int] = []

    def report(self, step: int, loss: float) -> None:
        self.steps.append(step)
        self.losses.append(loss)

    def run(self, model: Any, steps: int, rate: float = 0.05) -> None:
        samples = [TrainSample(tokens=make_text(), response_start=2, number=0)]
        train(
            model,
            samples,
            RandomStates(),
            Geometry(rows=1, context=16, anchors=8, block=4, mask_token=3),
            Schedule(steps=steps, learning_rate=rate, evaluate_every=10, compiled=False),
            self.checkpoint,
            self.report,
            lambda step, _: self.evaluated.append(step),
        )


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "checkpoint.pt")


def test_a_text_is_learned_and_some_steps_are_judged(training: Training) -> None:
    training.run(make_drafter(0), 40)
    assert training.steps == list(range(1, 41))
    assert training.evaluated == [10, 20, 30, 40]
    assert training.losses[-1] < training.losses[0] / 2.5


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
    # Neither evaluated nor kept: what is left is a model of no use.
    assert training.steps == [1]
    assert not training.checkpoint.exists()
