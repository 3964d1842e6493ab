"""Drafts are judged at every anchor once; a walk counts those that an engine would make."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.training import acceptance
from slipstream.training.acceptance import Rights, average_everywhere, judge_sample, walk
from slipstream.training.batches import Batch, Geometry, TrainSample
from tests.unit.training.pieces import TellingStates, make_samples, pretend_installed


def make_texts(seed: int, width: int, lengths: list[int], share: float) -> list[Rights]:
    """Make judged texts in which about this share of tokens is right."""
    generator = np.random.default_rng(seed)
    return [generator.random((length, width)) < share for length in lengths]


TEXTS = some.builds(
    make_texts,
    seed=some.integers(0, 10_000),
    width=some.integers(1, 6),
    lengths=some.lists(some.integers(1, 40), min_size=1, max_size=4),
    share=some.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]),
)


def rights(*rows: str) -> Rights:
    """Read rows of + for a right token and - for a wrong one."""
    return np.array([[sign == "+" for sign in row] for row in rows])


def test_a_draft_holds_up_to_its_first_wrong_token() -> None:
    figure = average_everywhere([rights("++-", "-++", "+-+")])
    assert figure.drafts == 3
    assert figure.tokens_per_step == pytest.approx(1 + (2 + 0 + 1) / 3)
    assert figure.by_position == pytest.approx((2 / 3, 1 / 3, 0))


def test_a_walk_drafts_again_after_the_accepted_tokens_and_the_targets_own() -> None:
    # From 0 two tokens hold, so the next draft is at 3; from there none, then 4, then the end.
    text = rights("++-", "---", "---", "-++", "+--", "+++")
    figure = walk([text])
    assert figure.drafts == 3
    assert figure.tokens_per_step == pytest.approx(1 + (2 + 0 + 1) / 3)
    assert figure.by_position == pytest.approx((2 / 3, 1 / 3, 0))


def test_a_walk_begins_anew_with_every_text() -> None:
    figure = walk([rights("+++", "---"), rights("---")])
    assert figure.drafts == 2
    assert figure.tokens_per_step == pytest.approx(1 + 3 / 2)


def test_longer_texts_count_for_more_when_drafting_everywhere() -> None:
    figure = average_everywhere([rights("+", "+", "+"), rights("-")])
    assert figure.tokens_per_step == pytest.approx(1 + 3 / 4)


@given(TEXTS)
def test_the_positions_add_up_to_the_tokens_of_a_step(texts: list[Rights]) -> None:
    for figure in (average_everywhere(texts), walk(texts)):
        assert figure.tokens_per_step == pytest.approx(1 + sum(figure.by_position))
        assert list(figure.by_position) == sorted(figure.by_position, reverse=True)
        assert 1 <= figure.tokens_per_step <= 1 + texts[0].shape[1]


@given(TEXTS)
def test_a_walk_comes_to_the_end_of_every_text_and_hardly_beyond(texts: list[Rights]) -> None:
    figure = walk(texts)
    brought = figure.drafts * figure.tokens_per_step
    there = sum(map(len, texts))
    assert there - 1e-6 <= brought <= there + len(texts) * texts[0].shape[1] + 1e-6
    assert figure.drafts <= average_everywhere(texts).drafts == there


@given(TEXTS)
def test_a_drafter_that_is_never_right_walks_every_anchor(texts: list[Rights]) -> None:
    wrong = [np.zeros_like(text) for text in texts]
    assert walk(wrong) == average_everywhere(wrong)
    assert walk(wrong).tokens_per_step == 1


class FakeModel:
    """Foretells what `guess` makes of a batch; the drafter's layers are left out."""

    def __init__(self, guess: Callable[[Batch], Any]) -> None:
        self.guess = guess
        self.batches: list[Batch] = []

    def lm_head(self, _: object) -> Any:
        told = self.guess(self.batches[-1])[:, :, 1:].ravel()
        indices = SimpleNamespace(numpy=lambda: told)
        return SimpleNamespace(max=lambda at: {-1: SimpleNamespace(indices=indices)}[at])


class Hidden:
    """The drafter's output, of which all but the anchors' slots are asked for."""

    def __getitem__(self, places: object) -> "Hidden":
        assert places == (slice(None), slice(None), slice(1, None))
        return self

    def flatten(self, *dimensions: int) -> "Hidden":
        assert dimensions == (0, 2)
        return self


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeModel, TrainSample, Geometry], Rights]:
    pretend_installed(monkeypatch)
    monkeypatch.setattr("torch.inference_mode", nullcontext, raising=False)

    def draft(model: FakeModel, batch: Batch) -> Hidden:
        model.batches.append(batch)
        return Hidden()

    monkeypatch.setattr(acceptance, "draft", draft)
    return lambda model, sample, geometry: judge_sample(
        model, sample, TellingStates([sample]), geometry
    )


@pytest.mark.parametrize("response", [2, 3, 9, 17, 40])
@pytest.mark.parametrize(("rows", "anchors"), [(1, 1), (2, 4), (3, 8)])
def test_every_anchor_of_a_response_is_judged_once_and_in_order(
    judge: Callable[[FakeModel, TrainSample, Geometry], Rights],
    response: int,
    rows: int,
    anchors: int,
) -> None:
    (sample,) = make_samples([(5, response)])
    geometry = Geometry(rows=rows, context=16, anchors=anchors, block=4, mask_token=3)
    model = FakeModel(lambda batch: batch.targets)
    judged = judge(model, sample, geometry)
    assert judged.shape == (response - 1, 3)
    drafted = [
        token for batch in model.batches for token in batch.blocks[:, ::4].ravel() if token != 3
    ]
    assert drafted == list(sample.tokens[5:-1])
    seen = [
        row.tolist() for batch in model.batches for row in batch.visible.reshape(-1, 5 + response)
    ]
    first = [[at < anchor for at in range(5 + response)] for anchor in range(5, 4 + response)]
    assert seen[: response - 1] == first
    assert {len(batch.targets) <= rows for batch in model.batches} == {True}


def test_only_a_token_that_is_in_the_text_is_right(
    judge: Callable[[FakeModel, TrainSample, Geometry], Rights],
) -> None:
    (sample,) = make_samples([(5, 4)])
    geometry = Geometry(rows=2, context=16, anchors=2, block=4, mask_token=3)
    always = judge(FakeModel(lambda batch: np.abs(batch.targets)), sample, geometry)
    # Past the end of the text there is nothing to be right about.
    assert always.tolist() == rights("+++", "++-", "+--").tolist()
    never = judge(FakeModel(lambda batch: np.abs(batch.targets) + 1), sample, geometry)
    assert not never.any()
