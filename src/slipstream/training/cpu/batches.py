"""Training samples, the target's states of them in one file, and batches with anchors drawn anew.

The file has rows of [layers * hidden] bfloat16 and the target's likeliest next tokens with their
log-probabilities, a token after the other, sample after sample, in the order of the responses;
where each sample lies follows from its length. An interrupted stage goes on after the last whole
window.

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
TOKENS_PER_BATCH = 2048
SAMPLES_IN_A_WINDOW = 64
# A row that goes on with a sequence reads a quarter of itself again, as context.
SHARE_READ_AGAIN = 4
# What the target itself would say next, and how likely: so many tokens of each place.
CHOICES = 8
CHOICE_BYTES = CHOICES * (4 + 2)
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One conversation: its tokens, where the response starts, and its hidden states."""

    tokens: Numbers
    response_start: int
    number: int
    id: str = ""


@dataclass(frozen=True, slots=True)
class SamplePart:
    """Tokens `first` to `end` of a sequence, in a row from its `start` on."""

    start: int
    sample: TrainSample
    first: int
    end: int

    @property
    def row(self) -> slice:
        return slice(self.start, self.start + self.end - self.first)


Anchor = tuple[SamplePart, int]


class States(Protocol):
    """Returns the target's hidden states of a sample."""

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        """Return [tokens, layers * hidden] as the bits of bfloat16."""

    def read_choices(self, number: int) -> tuple[Numbers, Floats]:
        """Return the likeliest tokens after each one, and their shares: [tokens, CHOICES] each."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step needs, as arrays; `targets` is -1 where nothing is to be predicted."""

    states: npt.NDArray[np.uint16]  # [rows, context, layers * hidden]
    blocks: Numbers  # [rows, anchors * block]
    visible: npt.NDArray[np.bool_]  # [rows, anchors, context]
    positions: Numbers  # [rows, context + anchors * block]
    targets: Numbers  # [rows, anchors, block]
    next_tokens: Numbers  # [rows, context], the token after each state's
    choices: Numbers  # [rows, anchors, block - 1, CHOICES], what the target would say there
    shares: Floats  # of each choice, 0 where nothing is to be predicted


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
    rows = pack_rows(_shuffle_for_ever(samples, generator), states, geometry, generator)
    while True:
        yield stack([next(rows) for _ in range(geometry.rows)])


def pack_rows(
    order: Iterator[TrainSample], states: States, geometry: Geometry, generator: np.random.Generator
) -> Iterator[Batch]:
    """Yield rows full of sequences, each with anchors drawn among its response tokens.

    What a row has no room for is the next one's, behind some of what came before it: so every
    place of a response is as often a candidate as any other.
    """
    sample, done = next(order), 0
    while True:
        candidates: list[Anchor] = []
        parts: list[SamplePart] = []
        start = 0
        while geometry.context - start > geometry.block:
            first = max(0, done - geometry.context // SHARE_READ_AGAIN)
            end = min(len(sample.tokens), first + geometry.context - start)
            part = SamplePart(start, sample, first, end)
            parts.append(part)
            places = range(max(done, sample.response_start), min(end, len(sample.tokens) - 1))
            candidates += [(part, place) for place in places]
            start += end - first
            done = end
            if end == len(sample.tokens):
                sample, done = next(order), 0
        count = min(geometry.anchors, len(candidates))
        chosen = generator.choice(len(candidates), size=count, replace=False) if candidates else ()
        yield make_row(parts, [candidates[at] for at in sorted(chosen)], states, geometry)


def make_row(
    parts: Sequence[SamplePart], anchors: Sequence[Anchor], states: States, geometry: Geometry
) -> Batch:
    """Return one row; an anchor is the part that it lies in, and its place in the sequence."""
    block, context = geometry.block, geometry.context
    read = [states.read(part.sample.number)[part.first : part.end] for part in parts]
    rows = np.zeros((context, read[0].shape[1]), np.uint16)
    positions = np.zeros(context + geometry.anchors * block, np.int64)
    next_tokens = np.zeros(context, np.int64)
    for part, values in zip(parts, read, strict=True):
        rows[part.row] = values
        positions[part.row] = np.arange(part.first, part.end)
        following = part.sample.tokens[part.first + 1 : part.end]
        next_tokens[part.start : part.start + len(following)] = following
    blocks = np.full((geometry.anchors, block), geometry.mask_token or 0, np.int64)
    visible = np.zeros((geometry.anchors, context), np.bool_)
    targets = np.full((geometry.anchors, block), -1, np.int64)
    choices = np.zeros((geometry.anchors, block - 1, CHOICES), np.int64)
    shares = np.zeros(choices.shape, np.float32)
    likely_tokens = {part.sample.number: states.read_choices(part.sample.number) for part in parts}
    for slot, (part, anchor) in enumerate(anchors):
        blocks[slot, 0] = part.sample.tokens[anchor]
        visible[slot, part.start : part.start + anchor - part.first] = True
        draft = part.sample.tokens[anchor + 1 : anchor + block]
        targets[slot, 1 : 1 + len(draft)] = draft
        tokens, likely = (
            one[anchor : anchor + len(draft)] for one in likely_tokens[part.sample.number]
        )
        choices[slot, : len(draft)], shares[slot, : len(draft)] = tokens, likely
        if geometry.mask_token is None:
            blocks[slot, 1 : 1 + len(draft)] = draft
        first = context + slot * block
        positions[first : first + block] = np.arange(anchor, anchor + block)
    flat = blocks.reshape(1, -1)
    tensors = (rows[None], flat, visible[None], positions[None], targets[None], next_tokens[None])
    return Batch(*tensors, choices[None], shares[None])


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
    return layers * hidden_size * ELEMENT_BYTES + CHOICE_BYTES


@dataclass(frozen=True, slots=True)
class StateFile:
    """The states of samples, read without loading the file."""

    rows: npt.NDArray[np.uint16]
    starts: tuple[int, ...]

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        return self._find(number)[:, : -CHOICE_BYTES // ELEMENT_BYTES]

    def read_choices(self, number: int) -> tuple[Numbers, Floats]:
        kept = np.ascontiguousarray(self._find(number)[:, -CHOICE_BYTES // ELEMENT_BYTES :])
        tokens, likely = kept[:, : 2 * CHOICES], kept[:, 2 * CHOICES :]
        shares = np.exp(np.ascontiguousarray(likely).view(np.float16).astype(np.float32))
        return np.ascontiguousarray(tokens).view(np.int32).astype(np.int64), shares

    def _find(self, number: int) -> npt.NDArray[np.uint16]:
        return self.rows[self.starts[number] : self.starts[number + 1]]


def open_states(path: Path, samples: Sequence[TrainSample], width: int) -> StateFile:
    """Open a file that `extract` has finished; `width` is layers * hidden size."""
    starts = _find_starts(samples)
    shape = (starts[-1], width + CHOICE_BYTES // ELEMENT_BYTES)
    if path.stat().st_size != shape[0] * shape[1] * ELEMENT_BYTES:
        raise InvalidInputError(
            f"{path} does not match these responses and layers",
            hint=f"remove {path.parent}, and run the same command again",
        )
    return StateFile(np.memmap(path, np.uint16, "r", shape=shape), starts)


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
        last = hidden.last_hidden_state
        for row, sample in enumerate(batch):
            own = states[row, : len(sample.tokens)]
            if not torch.isfinite(own).all():
                raise InvalidInputError(
                    f"the target's hidden states of sample {sample.number} are not finite",
                    hint="choose other layers with --layer-ids, or check the checkpoint",
                )
            bits = own.to(torch.bfloat16).contiguous().view(torch.uint16)
            with torch.inference_mode():
                logits = model.lm_head(last[row, : len(sample.tokens)])
                # Two rows stay in the cache: half the time of all at once.
                pairs = [
                    torch.log_softmax(two.float(), -1).topk(CHOICES, -1) for two in logits.split(2)
                ]
                likely, choices = map(torch.cat, zip(*pairs, strict=True))
            kept = (
                choices.to(torch.int32).view(torch.uint16),
                likely.to(torch.float16).view(torch.uint16),
            )
            yield sample.number, np.concatenate([bits, *kept], 1)


def group_by_length(samples: Sequence[TrainSample]) -> Iterator[list[TrainSample]]:
    """Group samples of similar length, to keep padding small."""
    batch: list[TrainSample] = []
    for sample in sorted(samples, key=lambda sample: len(sample.tokens)):
        if batch and (len(batch) + 1) * len(sample.tokens) > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch


def _find_starts(samples: Sequence[TrainSample]) -> tuple[int, ...]:
    return tuple(accumulate((len(sample.tokens) for sample in samples), initial=0))
