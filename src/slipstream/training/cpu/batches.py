"""Training samples, the target's states of them in one file, and batches with anchors drawn anew.

The file has rows of [layers * hidden] bfloat16, a token after the other, sample after sample, in
the order of the responses; where each sample lies follows from its length. An interrupted stage
goes on after the last whole window.

An anchor is a response token that is known when a block is drafted; the block's other slots are
masks whose tokens are to be predicted, or the text itself for a drafter that reads what it
drafted before (EAGLE-3). What lies before the anchor, in the same sequence, is the context
(https://arxiv.org/abs/2602.06036). Sequences are packed into rows of one length.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.errors import InvalidInputError
from slipstream.training.responses import Response

ELEMENT_BYTES = 2
TOKENS_AT_ONCE = 2048
SAMPLES_IN_A_WINDOW = 64
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One conversation: its tokens, where the response starts, and its hidden states."""

    tokens: Numbers
    response_start: int
    number: int
    id: str = ""


# The start of a sequence in its row, the sequence, and its length there or the place of an anchor.
Part = tuple[int, TrainSample, int]


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


def list_samples(responses: Sequence[Response]) -> list[TrainSample]:
    """Return the responses that are long enough to draft in, numbered."""
    long_enough = [response for response in responses if len(response.response_ids) >= 2]
    return [
        TrainSample(
            tokens=np.array((*response.prompt_ids, *response.response_ids), np.int64),
            response_start=len(response.prompt_ids),
            number=number,
            id=response.id,
        )
        for number, response in enumerate(long_enough)
    ]


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
    parts: list[Part] = []
    start = 0
    while geometry.context - start > geometry.block:
        sample = next(order)
        parts.append((start, sample, min(geometry.context - start, len(sample.tokens))))
        start += parts[-1][2]
    candidates = [
        (start, sample, anchor)
        for start, sample, taken in parts
        for anchor in range(sample.response_start, taken - 1)
    ]
    count = min(geometry.anchors, len(candidates))
    chosen = generator.choice(len(candidates), size=count, replace=False) if candidates else ()
    anchors = [candidates[number] for number in sorted(chosen)]
    return make_row(parts, anchors, states, geometry)


def make_row(
    parts: Sequence[Part], anchors: Sequence[Part], states: States, geometry: Geometry
) -> Batch:
    """Return one row; a part is (its start, the sequence, its length), an anchor has its place."""
    block, context = geometry.block, geometry.context
    read = [states.read(sample.number) for _, sample, _ in parts]
    rows = np.zeros((context, read[0].shape[1]), np.uint16)
    positions = np.zeros(context + geometry.anchors * block, np.int64)
    next_tokens = np.zeros(context, np.int64)
    for (start, sample, taken), values in zip(parts, read, strict=True):
        rows[start : start + taken] = values[:taken]
        positions[start : start + taken] = np.arange(taken)
        next_tokens[start : start + taken - 1] = sample.tokens[1:taken]
    blocks = np.full((geometry.anchors, block), geometry.mask_token or 0, np.int64)
    visible = np.zeros((geometry.anchors, context), np.bool_)
    targets = np.full((geometry.anchors, block), -1, np.int64)
    for slot, (start, sample, anchor) in enumerate(anchors):
        blocks[slot, 0] = sample.tokens[anchor]
        visible[slot, start : start + anchor] = True
        draft = sample.tokens[anchor + 1 : anchor + block]
        targets[slot, 1 : 1 + len(draft)] = draft
        if geometry.mask_token is None:
            blocks[slot, 1 : 1 + len(draft)] = draft
        first = context + slot * block
        positions[first : first + block] = np.arange(anchor, anchor + block)
    flat = blocks.reshape(1, -1)
    return Batch(rows[None], flat, visible[None], positions[None], targets[None], next_tokens[None])


def stack(rows: Sequence[Batch]) -> Batch:
    return Batch(
        *(np.concatenate([getattr(row, name) for row in rows]) for name in Batch.__slots__)
    )


def _shuffle_for_ever(
    samples: Sequence[TrainSample], generator: np.random.Generator
) -> Iterator[TrainSample]:
    while True:
        for number in generator.permutation(len(samples)):
            yield samples[number]


def row_bytes(layers: int, hidden_size: int) -> int:
    return layers * hidden_size * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class StateFile:
    """The states of samples, read without loading the file."""

    rows: npt.NDArray[np.uint16]
    starts: tuple[int, ...]

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        return self.rows[self.starts[number] : self.starts[number + 1]]


def open_states(path: Path, samples: Sequence[TrainSample], width: int) -> StateFile:
    """Open a file that `extract` has finished; `width` is layers * hidden size."""
    starts = _find_starts(samples)
    return StateFile(np.memmap(path, np.uint16, "r", shape=(starts[-1], width)), starts)


def extract(
    target: Path,
    samples: Sequence[TrainSample],
    layer_ids: Sequence[int],
    path: Path,
    report: Callable[[int, int], None],
    dtype: str = "bfloat16",
) -> None:
    """Compute the states with transformers, and append them to the file window by window."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype)).eval()
    width = row_bytes(len(layer_ids), model.config.get_text_config().hidden_size)
    starts = _find_starts(samples)
    with path.open("ab") as file:
        # The first sample that is not wholly in the file.
        done = bisect_right(starts, file.tell() // width) - 1
        os.ftruncate(file.fileno(), starts[done] * width)
        while done < len(samples):
            window = samples[done : done + SAMPLES_IN_A_WINDOW]
            states = dict(_compute(model, window, layer_ids))
            for sample in window:
                file.write(states[sample.number].tobytes())
            file.flush()
            done += len(window)
            report(starts[done], starts[-1])


def _compute(
    model: Any, window: Sequence[TrainSample], layer_ids: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[np.uint16]]]:
    import torch

    for batch in group_by_length(window):
        length = max(len(sample.tokens) for sample in batch)
        tokens = torch.zeros(len(batch), length, dtype=torch.long)
        for row, sample in enumerate(batch):
            tokens[row, : len(sample.tokens)] = torch.from_numpy(sample.tokens)
        with torch.inference_mode():
            # Padding stands at the end, where causal attention does not look from before.
            hidden = model.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        states = torch.cat([hidden.hidden_states[layer] for layer in layer_ids], -1)
        for row, sample in enumerate(batch):
            own = states[row, : len(sample.tokens)]
            if not torch.isfinite(own).all():
                raise InvalidInputError(
                    f"the target's hidden states of sample {sample.number} are not finite",
                    hint="choose other layers with --layer-ids, or check the checkpoint",
                )
            bits = own.to(torch.bfloat16).contiguous().view(torch.uint16)
            yield sample.number, bits.numpy()


def group_by_length(samples: Sequence[TrainSample]) -> Iterator[list[TrainSample]]:
    """Group samples of similar length, to keep padding small."""
    batch: list[TrainSample] = []
    for sample in sorted(samples, key=lambda sample: len(sample.tokens)):
        if batch and (len(batch) + 1) * len(sample.tokens) > TOKENS_AT_ONCE:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch


def _find_starts(samples: Sequence[TrainSample]) -> tuple[int, ...]:
    return tuple(accumulate((len(sample.tokens) for sample in samples), initial=0))
