"""Training batches: sequences packed into rows of one length, with anchors drawn anew each time.

An anchor is a response token that is known when a block is drafted; the block's other slots
are masks whose tokens are to be predicted, or the text itself for a drafter that reads what it
drafted before (EAGLE-3). What lies before the anchor, in the same sequence,
is the context (https://arxiv.org/abs/2602.06036).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One conversation: its tokens, where the response starts, and its hidden states."""

    tokens: Numbers
    response_start: int
    number: int
    row: int = 0


class States(Protocol):
    """Returns the target's hidden states of a sample."""

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        """Return [tokens, layers * hidden] as the bits of bfloat16."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step needs, as arrays; `targets` is -1 where nothing is to be predicted."""

    states: npt.NDArray[np.uint16]  # [rows, context, layers * hidden]
    blocks: Numbers  # [rows, anchors * block]
    visible: npt.NDArray[np.bool_]  # [rows, anchors, context]
    positions: Numbers  # [rows, context + anchors * block]
    targets: Numbers  # [rows, anchors, block]
    next_tokens: Numbers  # [rows, context], the token after each state's


@dataclass(frozen=True, slots=True)
class Geometry:
    """The fixed shape of every batch, so that a compiled step is compiled once."""

    rows: int
    context: int
    anchors: int
    block: int
    mask_token: int | None  # None puts the text into the blocks


def draw_batches(
    samples: Sequence[TrainSample],
    states: States,
    geometry: Geometry,
    generator: np.random.Generator,
) -> Iterator[Batch]:
    """Yield batches without end, each pass over the samples in another order."""
    order = _shuffle_for_ever(samples, generator)
    while True:
        yield stack([pack_row(order, states, geometry, generator) for _ in range(geometry.rows)])


def pack_row(
    order: Iterator[TrainSample], states: States, geometry: Geometry, generator: np.random.Generator
) -> Batch:
    """Fill one row with sequences, the last one cut, and draw its anchors."""
    parts: list[tuple[TrainSample, int]] = []
    room = geometry.context
    while room > geometry.block:
        sample = next(order)
        taken = min(room, len(sample.tokens))
        parts.append((sample, taken))
        room -= taken
    candidates = [
        (start, sample, anchor)
        for start, sample, taken in _with_starts(parts)
        for anchor in range(sample.response_start, taken - 1)
    ]
    count = min(geometry.anchors, len(candidates))
    chosen = generator.choice(len(candidates), size=count, replace=False) if candidates else ()
    anchors = [candidates[number] for number in sorted(chosen)]
    return make_row(parts, anchors, states, geometry)


def make_row(
    parts: Sequence[tuple[TrainSample, int]],
    anchors: Sequence[tuple[int, TrainSample, int]],
    states: States,
    geometry: Geometry,
) -> Batch:
    """Return one row; an anchor is (start of its sequence, the sequence, the position)."""
    block, context = geometry.block, geometry.context
    read = [
        (start, taken, states.read(sample.number)) for start, sample, taken in _with_starts(parts)
    ]
    rows = np.zeros((context, read[0][2].shape[1]), np.uint16)
    positions = np.zeros(context + geometry.anchors * block, np.int64)
    next_tokens = np.zeros(context, np.int64)
    for start, taken, values in read:
        rows[start : start + taken] = values[:taken]
        positions[start : start + taken] = np.arange(taken)
    for start, sample, taken in _with_starts(parts):
        next_tokens[start : start + taken - 1] = sample.tokens[1:taken]
    blocks = np.full((geometry.anchors, block), geometry.mask_token or 0, np.int64)
    visible = np.zeros((geometry.anchors, context), np.bool_)
    targets = np.full((geometry.anchors, block), -1, np.int64)
    for slot, (start, sample, anchor) in enumerate(anchors):
        blocks[slot, 0] = sample.tokens[anchor]
        visible[slot, start : start + anchor] = True
        told = sample.tokens[anchor + 1 : anchor + block]
        targets[slot, 1 : 1 + len(told)] = told
        if geometry.mask_token is None:
            blocks[slot, 1 : 1 + len(told)] = told
        first = context + slot * block
        positions[first : first + block] = np.arange(anchor, anchor + block)
    return Batch(
        rows[None],
        blocks.reshape(1, -1),
        visible[None],
        positions[None],
        targets[None],
        next_tokens[None],
    )


def stack(rows: Sequence[Batch]) -> Batch:
    """Stack rows of one geometry."""
    return Batch(
        *(np.concatenate([getattr(row, name) for row in rows]) for name in Batch.__slots__)
    )


def _with_starts(
    parts: Sequence[tuple[TrainSample, int]],
) -> Iterator[tuple[int, TrainSample, int]]:
    start = 0
    for sample, taken in parts:
        yield start, sample, taken
        start += taken


def _shuffle_for_ever(
    samples: Sequence[TrainSample], generator: np.random.Generator
) -> Iterator[TrainSample]:
    while True:
        for number in generator.permutation(len(samples)):
            yield samples[number]
