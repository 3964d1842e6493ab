"""The loss against a slow one in double precision, and the tokens that its softmax runs over."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.training.cpu.batches import CHOICES, Geometry, SamplePart, TrainSample, make_row
from slipstream.training.cpu.forward import run_drafter, to_tensors
from slipstream.training.cpu.loss import (
    DPACE_ALPHA,
    DRAWN_TOKENS,
    FREQUENT_TOKENS,
    TAUGHT_SHARE,
    SampledVocabulary,
    weigh,
)
from slipstream.training.cpu.trainer import Trainer
from slipstream.training.run import Schedule
from tests.unit.training.cpu.test_trainer import TOKENS, RandomStates, make_drafter

VOCABULARY = 12_000


def pick(candidates: SampledVocabulary, targets: Sequence[int]) -> tuple[Any, ...]:
    """Pick for targets whose only choice is the token itself."""
    flat = np.array(targets)
    choices = np.repeat(flat[:, None], CHOICES, 1)
    return candidates.pick(flat, choices, np.full(choices.shape, 1 / CHOICES, np.float32))


def count(tokens: list[int], vocabulary: int = VOCABULARY, seed: int = 0) -> SampledVocabulary:
    """Count a sample whose prompt is token 7 and whose response is `tokens`."""
    sample = TrainSample(tokens=np.array([7, *tokens]), response_start=1, number=0)
    return SampledVocabulary.count([sample], vocabulary, np.random.default_rng(seed))


@given(some.integers(1, VOCABULARY), some.integers(0, 1000), some.data())
def test_every_target_is_a_candidate_and_no_token_is_one_twice(
    size: int, seed: int, data: some.DataObject
) -> None:
    """A small vocabulary is taken whole."""
    targets = data.draw(some.lists(some.integers(-1, size - 1), min_size=1, max_size=DRAWN_TOKENS))
    tokens, correction, places, *_ = pick(count([0], vocabulary=size, seed=seed), targets)
    expected = min(size, FREQUENT_TOKENS + DRAWN_TOKENS)
    assert len(np.unique(tokens)) == len(tokens) == expected
    assert [-1 if place < 0 else int(tokens[place]) for place in places] == targets
    # Together they stand for every token, a target for itself alone.
    assert np.exp(correction).sum() == pytest.approx(size)
    assert not correction[places[places >= 0]].any()


def test_targets_beyond_the_draw_are_not_counted_and_the_shape_stays() -> None:
    choice = count([5])
    rare = choice.rest[: DRAWN_TOKENS + 10]
    tokens, _, places, *_ = pick(choice, rare)
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
    (first, *_), (second, *_) = (pick(choice, [5]) for _ in range(2))
    assert set(first) & set(second) >= set(choice.frequent)
    assert set(first) != set(second)


def weigh_slowly(sure: list[float]) -> list[float]:
    """Return what each place weighs in a block of these confidences, as the paper writes it."""
    smooth = [(1 - DPACE_ALPHA) * one + DPACE_ALPHA for one in sure]
    return [
        sum(math.prod(smooth[: until + 1]) for until in range(place, len(sure)))
        for place in range(len(sure))
    ]


@given(some.lists(some.lists(some.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_place_weighs_what_is_accepted_from_it_on(blocks: list[list[float]]) -> None:
    import torch

    surprise = -torch.tensor(blocks).flatten().log()
    weights = weigh(surprise, torch.ones_like(surprise), 3)
    expected = [weight for block in blocks for weight in weigh_slowly(block)]
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)


def test_what_the_text_has_no_token_for_weighs_nothing_and_shortens_the_block() -> None:
    import torch

    counted = torch.tensor([1.0, 1.0, 0.0])
    weights = weigh(torch.tensor([0.1, 0.7, 5.0]), counted, 3)
    assert weights[:2].tolist() == pytest.approx(weigh_slowly([math.exp(-0.1), math.exp(-0.7)]))
    assert weights[2] == 0


def make_step(seed: int) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Return a trainer, its batch as tensors, and head, correction and targets of a step."""
    import torch

    tokens = np.random.default_rng(seed).permutation(TOKENS)[:11]
    part = SamplePart(0, TrainSample(tokens=tokens, response_start=2, number=0), 0, 11)
    geometry = Geometry(rows=1, context=11, anchors=4, block=4, mask_token=3)
    batch = make_row([part], [(part, at) for at in (2, 5, 8)], RandomStates(), geometry)
    trainer = Trainer(make_drafter(seed), Schedule(steps=9, compiled=False))
    chosen = torch.from_numpy(np.sort(tokens))
    # Half of the tokens stand for three each.
    correction = torch.where(torch.arange(len(chosen)) % 2 == 0, 0.0, math.log(3))
    flat = batch.targets[..., 1:].reshape(-1)
    places = np.where(flat >= 0, np.searchsorted(np.sort(tokens), flat), -1)
    head = trainer.model.lm_head.weight[chosen]
    chance = np.random.default_rng(seed)
    choices = chance.integers(0, len(chosen), (len(flat), CHOICES))
    shares = chance.dirichlet(np.ones(CHOICES), len(flat)).astype(np.float32)
    labels = (correction, *map(torch.from_numpy, (places, choices, shares)))
    return trainer, to_tensors(batch, torch.float32), (head, *labels)


def compute_slowly(trainer: Any, batch: tuple[Any, ...], step: tuple[Any, ...]) -> Any:
    """Compute the whole loss in double precision, place by place."""
    import torch

    model = trainer.model.double()
    states, _, blocks, mask, positions = batch
    head, correction, targets, choices, shares = step
    hidden = run_drafter(model, states.double(), None, blocks, mask.double(), positions)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for block in range(4):
        places = [place for place in range(3) if targets[block * 3 + place] >= 0]
        surprises, losses = [], []
        for place in places:
            drafted, at = hidden[0, block * 4 + 1 + place], block * 3 + place
            logits = torch.stack([drafted @ row for row in head.double()]) + correction.double()
            each = [logits.exp().sum().log() - one for one in logits]
            surprises.append(each[targets[at]])
            taught = sum(float(shares[at, k]) * each[choices[at, k]] for k in range(CHOICES))
            losses.append(TAUGHT_SHARE * taught + (1 - TAUGHT_SHARE) * surprises[-1])
        weights = weigh_slowly([math.exp(-one.item()) for one in surprises])
        total = total + sum(w * one for w, one in zip(weights, losses, strict=True))
        count += len(places)
    return total / count


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_a_slow_computation(seed: int) -> None:
    trainer, batch, step = make_step(seed)
    loss = trainer._loss(*batch, *step)
    loss.backward()
    trained = [one for one in trainer.model.parameters() if one.requires_grad]
    ours = [one.grad.double().clone() for one in trained]
    trainer.model.zero_grad()
    reference = compute_slowly(trainer, batch, step)
    reference.backward()
    theirs = [one.grad for one in trainer.model.parameters() if one.requires_grad]
    assert loss.item() == pytest.approx(reference.item(), rel=1e-5)
    for mine, exact in zip(ours, theirs, strict=True):
        assert (mine - exact).abs().max() < 1e-4 * exact.abs().max() + 1e-7


def test_a_sampled_softmax_comes_near_the_whole_one() -> None:
    """Without its correction a token of the rest would count for itself, not for 55."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 1, 60_000)
    choice = SampledVocabulary(np.arange(4096), np.arange(4096, 60_000), generator)
    exact = math.log(np.exp(logits).sum())
    found = []
    for _ in range(20):
        tokens, correction, *_ = pick(choice, [7])
        found.append(math.log(np.exp(logits[tokens] + correction).sum()))
    assert np.mean(found) == pytest.approx(exact, abs=0.05)


def test_choices_share_one_as_far_as_the_softmax_has_them() -> None:
    choice = count([5])
    absent = choice.rest[-3:]
    choices = np.array([[5, 0, *[absent[0]] * 6], [*absent, *absent, *absent[:2]], [5] * 8])
    shares = np.tile(np.array([0.4, 0.2, *[0.1] * 6], np.float32)[None] / 1.2, (3, 1))
    # Only what a draw can leave out is absent.
    choice.rest = choice.rest[:-3]
    tokens, _, places, among, known = choice.pick(np.array([5, 9, -1]), choices, shares)
    assert known.sum(1) == pytest.approx(1)
    assert known[0, :2] == pytest.approx([2 / 3, 1 / 3])
    assert tokens[among[0, :2]].tolist() == [5, 0]
    # Where nothing of it is known, the text's own token is the whole choice.
    assert (among[1, 0], known[1, 0]) == (places[1], 1)
