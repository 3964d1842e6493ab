"""A row is whole sequences and anchors among their responses; no block sees more than it may.

States lie one sample after the other, and an interrupted file is gone on with.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.training.cpu import batches
from slipstream.training.cpu.batches import (
    CHOICES,
    TOKENS_PER_BATCH,
    Batch,
    Geometry,
    SamplePart,
    TrainSample,
    draw_batches,
    extract,
    group_by_length,
    list_samples,
    make_row,
    open_states,
    pack_rows,
    row_bytes,
)
from slipstream.training.responses import Response
from tests.unit.training.pieces import TellingStates, make_samples, pretend_installed

MASK = 3
ROW = row_bytes(2, 1)
SHAPES = some.lists(some.tuples(some.integers(1, 12), some.integers(2, 30)), min_size=1, max_size=6)
GEOMETRIES = some.builds(
    Geometry,
    rows=some.integers(1, 3),
    context=some.integers(20, 80),
    anchors=some.integers(1, 12),
    block=some.integers(2, 8),
    mask_token=some.just(MASK),
)


def draw(samples: list[TrainSample], geometry: Geometry, seed: int = 0) -> Iterator[Batch]:
    return draw_batches(samples, TellingStates(samples), geometry, np.random.default_rng(seed))


def pack(samples: list[TrainSample], geometry: Geometry) -> Batch:
    """Pack the samples in this very order, again and again."""
    rows = pack_rows(cycle(samples), TellingStates(samples), geometry, np.random.default_rng(0))
    return next(rows)


def blocks_of(batch: Batch, block: int) -> Iterator[tuple[int, int]]:
    """List (row, slot) of the blocks that hold an anchor."""
    for row, slot in np.ndindex(batch.targets.shape[:2]):
        if batch.blocks[row, slot * block] != MASK:
            yield row, slot


def find(samples: list[TrainSample], token: int) -> tuple[TrainSample, int]:
    """Say whose token this is, and where in it."""
    (found,) = [
        (sample, int(np.flatnonzero(sample.tokens == token)[0]))
        for sample in samples
        if token in sample.tokens
    ]
    return found


@given(SHAPES, GEOMETRIES, some.integers(0, 100))
def test_every_block_keeps_its_promises(
    shapes: list[tuple[int, int]], geometry: Geometry, seed: int
) -> None:
    samples = make_samples(shapes)
    batch = next(draw(samples, geometry, seed))
    block, context = geometry.block, geometry.context
    for row, slot in blocks_of(batch, block):
        first, *masks = batch.blocks[row, slot * block : (slot + 1) * block]
        sample, anchor = find(samples, first)
        assert masks == [MASK] * (block - 1)
        # An anchor is a token of a response, and not the last one.
        assert sample.response_start <= anchor < len(sample.tokens) - 1
        # What is to be predicted follows the anchor at once, and stops where the text does.
        told = sample.tokens[anchor + 1 : anchor + block]
        assert list(batch.targets[row, slot]) == [-1, *told, *[-1] * (block - 1 - len(told))]
        # The target's first choice here is the text itself.
        assert list(batch.choices[row, slot, : len(told), 0]) == list(told)
        assert (
            batch.shares[row, slot].any(-1).tolist() == (batch.targets[row, slot, 1:] >= 0).tolist()
        )
        # What comes before the anchor is seen, of this sequence and of no other.
        seen = batch.states[row][batch.visible[row, slot]]
        assert (seen[:, 0] == sample.number + 1).all()
        assert seen[:, 1].tolist() == list(range(anchor - len(seen), anchor))
        assert len(seen) >= min(anchor, context // 4)
        places = batch.positions[row, context + slot * block :][:block]
        assert places.tolist() == list(range(anchor, anchor + block))
    # No anchor is drawn twice in a row; a sequence may stand in it twice, and starts elsewhere.
    drawn = [
        (row, int(batch.blocks[row, slot * block]), int(np.argmax(batch.visible[row, slot])))
        for row, slot in blocks_of(batch, block)
    ]
    assert len(drawn) == len(set(drawn))


@given(SHAPES, GEOMETRIES, some.integers(0, 100))
def test_every_row_has_one_shape_and_idle_slots_see_nothing(
    shapes: list[tuple[int, int]], geometry: Geometry, seed: int
) -> None:
    rows, context, anchors, block = (
        getattr(geometry, name) for name in ("rows", "context", "anchors", "block")
    )
    batch = next(draw(make_samples(shapes), geometry, seed))
    assert batch.states.shape == (rows, context, 2)
    assert batch.blocks.shape == (rows, anchors * block)
    assert batch.visible.shape == (rows, anchors, context)
    assert batch.positions.shape == (rows, context + anchors * block)
    assert batch.targets.shape == (rows, anchors, block)
    taken = set(blocks_of(batch, block))
    for place in np.ndindex(rows, anchors):
        assert (batch.targets[place] == -1).all() == (place not in taken)
        assert batch.visible[place].any() == (place in taken)
    for states, positions in zip(batch.states, batch.positions, strict=True):
        filled = states[:, 0] > 0
        assert positions[:context][filled].tolist() == states[filled, 1].tolist()
        # A row is filled from its start up to less than a block, which is left empty.
        assert filled[: filled.sum()].all()
        assert context - filled.sum() <= block


def test_anchors_fill_as_many_slots_as_there_are_candidates() -> None:
    samples = make_samples([(4, 6), (3, 4)])
    batch = pack(samples, Geometry(rows=1, context=17, anchors=20, block=4, mask_token=MASK))
    taken = [slot for _, slot in blocks_of(batch, 4)]
    # Five of six response tokens have a next one, and three of four.
    assert taken == list(range(8))
    assert batch.blocks[0, :32:4].tolist() == [*samples[0].tokens[4:9], *samples[1].tokens[3:6]]


def test_of_many_candidates_others_are_drawn_each_time_and_again_with_the_same_seed() -> None:
    samples = make_samples([(4, 60)])
    geometry = Geometry(rows=1, context=64, anchors=4, block=4, mask_token=MASK)
    first, second = islice(draw(samples, geometry), 2)
    assert len(list(blocks_of(first, 4))) == len(list(blocks_of(second, 4))) == 4
    again, other = (next(draw(samples, geometry, seed)) for seed in (0, 1))
    drawn = [batch.blocks.tolist() for batch in (second, again, other)]
    assert [first.blocks.tolist() == blocks for blocks in drawn] == [False, True, False]


def test_the_last_sequence_of_a_row_is_cut_and_the_next_row_goes_on_with_it() -> None:
    samples = make_samples([(2, 18)])
    geometry = Geometry(rows=2, context=12, anchors=20, block=4, mask_token=MASK)
    batch = next(draw(samples, geometry))
    told = [
        [int(batch.blocks[row, 4 * slot]) for row, slot in blocks_of(batch, 4) if row == own]
        for own in (0, 1)
    ]
    # Every response token but the last is an anchor once; targets go beyond the row's end.
    assert told == [samples[0].tokens[2:12].tolist(), samples[0].tokens[12:19].tolist()]
    assert batch.targets[0, 9].tolist() == [-1, *samples[0].tokens[12:15]]
    assert batch.positions[1, :3].tolist() == [9, 10, 11]
    # A prompt longer than a row gives a row without anchors.
    geometry = Geometry(rows=1, context=20, anchors=3, block=4, mask_token=MASK)
    batch = pack(make_samples([(30, 5)]), geometry)
    assert (batch.targets == -1).all()
    assert (batch.blocks == MASK).all()
    assert not batch.visible.any()


def test_every_place_of_a_response_is_an_anchor_as_often_as_any_other() -> None:
    """A row that cuts a sequence and forgets the rest sees ends half as often as beginnings."""
    shapes = np.random.default_rng(5).integers((20, 30), (90, 400), size=(60, 2))
    samples = make_samples([(int(prompt), int(response)) for prompt, response in shapes])
    geometry = Geometry(rows=4, context=256, anchors=24, block=8, mask_token=MASK)
    starts = np.array([sample.tokens[0] for sample in samples])
    drawn, there = np.zeros(8), np.zeros(8)
    for sample in samples:
        there += np.bincount(
            np.arange(len(sample.tokens) - sample.response_start - 1) // 50, minlength=8
        )
    for batch in islice(draw(samples, geometry), 400):
        for row, slot in blocks_of(batch, 8):
            token = batch.blocks[row, slot * 8]
            sample = samples[int(np.searchsorted(starts, token, "right")) - 1]
            drawn[(token - sample.tokens[0] - sample.response_start) // 50] += 1
    share = drawn / drawn.sum() / (there / there.sum())
    # A row has as many anchors whether prompts take up much of it or little.
    assert share == pytest.approx(1, abs=0.15)


def test_a_drafter_that_reads_its_own_tokens_gets_the_text_in_its_blocks() -> None:
    samples = make_samples([(2, 9)])
    batch = pack(samples, Geometry(rows=1, context=11, anchors=9, block=4, mask_token=None))
    blocks = batch.blocks.reshape(9, 4)
    (tokens,) = [sample.tokens for sample in samples]
    assert blocks[0].tolist() == tokens[2:6].tolist()
    assert blocks[7].tolist() == [*tokens[9:11], 0, 0]
    told = batch.targets[0] >= 0
    assert (blocks[told] == batch.targets[0][told]).all()


def test_beside_every_state_stands_the_next_token_of_its_own_text() -> None:
    samples = make_samples([(2, 4), (3, 5)])
    geometry = Geometry(rows=1, context=14, anchors=2, block=4, mask_token=MASK)
    parts = [SamplePart(0, samples[0], 0, 6), SamplePart(6, samples[1], 0, 8)]
    row = make_row(parts, [], TellingStates(samples), geometry)
    first, second = (sample.tokens[1:].tolist() for sample in samples)
    assert row.next_tokens[0].tolist() == [*first, 0, *second, 0]


def test_every_sample_comes_before_any_comes_again() -> None:
    samples = make_samples([(2, 14)] * 12)
    geometry = Geometry(rows=1, context=16, anchors=1, block=4, mask_token=MASK)
    drawn = draw(samples, geometry)
    rounds = [[int(next(drawn).states[0, 0, 0]) for _ in range(12)] for _ in range(2)]
    assert [sorted(one) for one in rounds] == [list(range(1, 13))] * 2
    assert rounds[0] != rounds[1]


def test_a_sample_is_a_prompt_with_a_response_of_two_tokens_at_least() -> None:
    responses = [
        Response(id=name, prompt_ids=(7, 8), response_ids=tuple(range(size)), finish_reason="stop")
        for name, size in (("a", 1), ("b", 3), ("c", 0), ("d", 2))
    ]
    first, second = list_samples(responses)
    assert first.tokens.tolist() == [7, 8, 0, 1, 2]
    assert [(one.id, one.number, one.response_start) for one in (first, second)] == [
        ("b", 0, 2),
        ("d", 1, 2),
    ]


LENGTHS = some.lists(some.integers(2, 3000), min_size=1, max_size=40)


def make(lengths: Sequence[int]) -> list[TrainSample]:
    return make_samples([(1, length - 1) for length in lengths])


def keep(telling: TellingStates, number: int) -> npt.NDArray[np.uint16]:
    """Return the rows of a sample as the file has them."""
    tokens, shares = telling.read_choices(number)
    choices = np.ascontiguousarray(tokens.astype(np.int32)).view(np.uint16)
    return np.concatenate(
        [telling.read(number), choices, np.log(shares).astype(np.float16).view(np.uint16)], 1
    )


def test_what_was_written_is_read_back_sample_by_sample(tmp_path: Path) -> None:
    samples = make([3, 5, 2])
    telling = TellingStates(samples)
    path = tmp_path / "states.bin"
    path.write_bytes(b"".join(keep(telling, sample.number).tobytes() for sample in samples))
    opened = open_states(path, samples, width=2)
    for sample in samples:
        assert np.array_equal(opened.read(sample.number), telling.read(sample.number))
        tokens, shares = opened.read_choices(sample.number)
        assert np.array_equal(tokens, telling.read_choices(sample.number)[0])
        assert shares == pytest.approx(1 / CHOICES, rel=1e-3)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidInputError, match="does not match these responses and layers"):
        open_states(path, samples, width=2)


@given(LENGTHS)
def test_samples_are_grouped_by_length_up_to_what_is_computed_at_once(lengths: list[int]) -> None:
    groups = [[len(sample.tokens) for sample in group] for group in group_by_length(make(lengths))]
    assert [length for group in groups for length in group] == sorted(lengths)
    for group in groups:
        assert len(group) * max(group) <= TOKENS_PER_BATCH or len(group) == 1


class Extraction:
    """The stage with a made-up target, and a record of what it had to compute."""

    def __init__(self, path: Path, samples: list[TrainSample]) -> None:
        self.path, self.samples = path, samples
        self.windows: list[list[int]] = []
        self.reports: list[tuple[int, int]] = []

    def compute(
        self, _: Any, window: Sequence[TrainSample], layer_ids: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[np.uint16]]]:
        assert layer_ids == (2, 5)
        self.windows.append([sample.number for sample in window])
        telling = TellingStates(self.samples)
        for sample in reversed(window):
            yield sample.number, keep(telling, sample.number)

    def run(self) -> None:
        extract(
            Path("target"),
            self.samples,
            (2, 5),
            self.path,
            lambda *done: self.reports.append(done),
        )

    def whole(self) -> bytes:
        telling = TellingStates(self.samples)
        return b"".join(keep(telling, sample.number).tobytes() for sample in self.samples)


@pytest.fixture
def extraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extraction:
    pretend_installed(monkeypatch)
    text = SimpleNamespace(hidden_size=1)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    loader = SimpleNamespace(from_pretrained=lambda *_, **__: SimpleNamespace(eval=lambda: model))
    monkeypatch.setattr(sys.modules["transformers"], "AutoModelForCausalLM", loader, raising=False)
    logging = SimpleNamespace(disable_progress_bar=lambda: None)
    monkeypatch.setitem(sys.modules, "transformers.utils", SimpleNamespace(logging=logging))
    monkeypatch.setattr("torch.bfloat16", "bfloat16", raising=False)
    made = Extraction(tmp_path / "states.bin", make([3, 5, 2, 4, 6]))
    monkeypatch.setattr(batches, "_compute", made.compute)
    monkeypatch.setattr(batches, "SAMPLES_IN_A_WINDOW", 2)
    return made


def test_states_are_written_in_the_order_of_the_samples(extraction: Extraction) -> None:
    extraction.run()
    assert extraction.path.read_bytes() == extraction.whole()
    assert extraction.windows == [[0, 1], [2, 3], [4]]
    assert extraction.reports == [(8, 20), (14, 20), (20, 20)]


@pytest.mark.parametrize(
    ("kept_bytes", "first"),
    [
        (0, 0),
        (ROW * 3 - 1, 0),  # a row short of the first sample
        (ROW * 3, 1),
        (ROW * 8 + 1, 2),  # in the midst of a row
        (ROW * 9, 2),
        (ROW * 10, 3),
        (ROW * 20, 5),  # a finished file is left as it is
    ],
)
def test_an_interrupted_file_goes_on_after_its_last_whole_sample(
    extraction: Extraction, kept_bytes: int, first: int
) -> None:
    # What stands beyond the last whole sample is thrown away: here it is garbage.
    whole = extraction.whole()
    good = sum(len(sample.tokens) for sample in extraction.samples[:first]) * ROW
    extraction.path.write_bytes(whole[:good] + b"\xff" * (kept_bytes - good))
    extraction.run()
    assert extraction.path.read_bytes() == whole
    assert [number for window in extraction.windows for number in window] == list(range(first, 5))
