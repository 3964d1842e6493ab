"""A step's softmax runs over every target, the frequent tokens and a fresh draw of the rest."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.training import cpu_lane
from slipstream.training.batches import Geometry, TrainSample
from slipstream.training.cpu_lane import DRAWN_TOKENS, FREQUENT_TOKENS, Candidates, train
from slipstream.training.settings import Schedule
from tests.unit.training.pieces import TellingStates, make_samples

VOCABULARY = 12_000


def count(tokens: list[int], vocabulary: int = VOCABULARY, seed: int = 0) -> Candidates:
    """Count a sample whose prompt is token 7 and whose response is `tokens`."""
    sample = TrainSample(tokens=np.array([7, *tokens]), response_start=1, number=0)
    return Candidates.count([sample], vocabulary, np.random.default_rng(seed))


def test_the_module_is_read_without_torch() -> None:
    code = f"import sys, {cpu_lane.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(
    some.lists(some.integers(-1, VOCABULARY - 1), min_size=1, max_size=DRAWN_TOKENS),
    some.integers(0, 1000),
)
def test_every_target_is_a_candidate_and_no_token_is_one_twice(
    targets: list[int], seed: int
) -> None:
    tokens, places = count([5, 6, 5], seed=seed).pick(np.array(targets))
    assert len(np.unique(tokens)) == len(tokens) == FREQUENT_TOKENS + DRAWN_TOKENS
    found = [-1 if place < 0 else int(tokens[place]) for place in places]
    assert found == targets


@given(some.integers(1, FREQUENT_TOKENS + DRAWN_TOKENS + 50), some.data())
def test_a_small_vocabulary_is_taken_whole(size: int, data: some.DataObject) -> None:
    targets = data.draw(some.lists(some.integers(-1, size - 1), min_size=1, max_size=20))
    tokens, places = count([0], vocabulary=size).pick(np.array(targets))
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


class FakeTrainer:
    """Takes steps whose losses are given, and leaves a checkpoint that says how far it came."""

    losses: tuple[float, ...] = ()

    def __init__(self, model: Any, schedule: Schedule) -> None:
        self.step = 0

    def take_step(self, batch: Any, choice: Candidates) -> tuple[float, float]:
        self.step += 1
        return self.losses[self.step - 1], 0.5

    def save(self, path: Path) -> None:
        path.write_text(str(self.step))

    def load(self, path: Path) -> None:
        self.step = int(path.read_text())


class Training:
    """The loop over steps without a model, and what it told."""

    def __init__(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint = checkpoint
        self.told: list[tuple[int, float]] = []
        self.judged: list[int] = []
        monkeypatch.setattr(cpu_lane, "Trainer", FakeTrainer)
        self.patch = monkeypatch

    def run(self, *losses: float, judge_every: int = 2) -> None:
        self.patch.setattr(FakeTrainer, "losses", losses)
        samples = make_samples([(2, 9)])
        train(
            SimpleNamespace(lm_head=SimpleNamespace(weight=np.zeros((2000, 1)))),
            samples,
            TellingStates(samples),
            Geometry(rows=1, context=16, anchors=2, block=4, mask_token=3),
            Schedule(
                steps=len(losses), learning_rate=2e-3, judge_every=judge_every, compiled=False
            ),
            self.checkpoint,
            lambda progress: self.told.append((progress.step, progress.loss)),
            self.judged.append,
        )


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path / "checkpoint.pt", monkeypatch)


def test_every_step_is_told_and_some_are_judged(training: Training) -> None:
    training.run(3.0, 2.5, 2.25, 2.0, 1.5)
    assert training.told == [(1, 3.0), (2, 2.5), (3, 2.25), (4, 2.0), (5, 1.5)]
    assert training.judged == [2, 4]
    assert training.checkpoint.read_text() == "5"


def test_training_goes_on_from_its_checkpoint(training: Training) -> None:
    training.checkpoint.write_text("3")
    training.run(3.0, 2.5, 2.25, 2.0)
    assert training.told == [(4, 2.0)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_ends_the_training_with_a_hint(
    training: Training, loss: float
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        training.run(3.0, loss, 2.0)
    assert caught.value.message == f"the loss is {loss} at step 2"
    assert "a lower --learning-rate than 0.002" in caught.value.hint
    # Neither judged nor kept: what is left is a model of no use.
    assert (training.told, training.judged) == ([(1, 3.0)], [])
    assert not training.checkpoint.exists()
