"""The target's hidden states of every sample, in one file that grows as they are computed.

Rows of [layers * hidden] bfloat16, a token after the other, sample after sample, in the order
of the responses; where each sample lies follows from its length. An interrupted stage goes on
after the last whole window.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import InvalidInputError
from slipstream.training.cpu.batches import TrainSample

ELEMENT_BYTES = 2
TOKENS_AT_ONCE = 2048
SAMPLES_IN_A_WINDOW = 64


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
