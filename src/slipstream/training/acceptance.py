"""How many of a drafter's tokens a target would accept, from held-out text alone.

Greedy text is known beforehand, so every draft can be judged without the engine. Two figures
come of it. `uniform` drafts at every position and averages, as speculators does while it
trains. `walked` goes through the text as the engine does: draft, take the accepted tokens and
the target's own next one, draft again there. A walk starts anew where a draft failed, which is
where text is hard to predict, so `walked` is the lower one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.records import Record
from slipstream.training.batches import Geometry, States, TrainSample, make_row, stack
from slipstream.training.cpu_models import draft

Rights = npt.NDArray[np.bool_]


class DrafterAcceptance(Record):
    """The acceptance of drafts: tokens per step, and the share accepted by position."""

    drafts: int
    tokens_per_step: float
    by_position: tuple[float, ...]


def judge_sample(model: Any, sample: TrainSample, states: States, geometry: Geometry) -> Rights:
    """Return which draft tokens are right at every anchor of a response: [anchors, block - 1]."""
    anchors = range(sample.response_start, len(sample.tokens) - 1)
    return np.concatenate(
        [
            _judge_rows(model, sample, part, states, geometry)
            for part in _split(anchors, geometry.anchors * geometry.rows)
        ]
    )


def average_everywhere(rights: Sequence[Rights]) -> DrafterAcceptance:
    """Return the mean over drafts at every position."""
    return _summarize([row for sample in rights for row in sample])


def walk(rights: Sequence[Rights]) -> DrafterAcceptance:
    """Return the mean over the drafts that an engine would make."""
    return _summarize([sample[step] for sample in rights for step in _steps_of(sample)])


def _steps_of(rights: Rights) -> Iterator[int]:
    step = 0
    while step < len(rights):
        yield step
        step += 1 + int(np.cumprod(rights[step]).sum())


def _summarize(drafts: Sequence[npt.NDArray[np.bool_]]) -> DrafterAcceptance:
    held = np.cumprod(np.array(drafts), axis=1)
    return DrafterAcceptance(
        drafts=len(drafts),
        tokens_per_step=1 + float(held.sum(1).mean()),
        by_position=tuple(float(share) for share in held.mean(0)),
    )


def _judge_rows(
    model: Any, sample: TrainSample, anchors: range, states: States, geometry: Geometry
) -> Rights:
    import torch

    own = Geometry(
        rows=1,
        context=len(sample.tokens),
        anchors=geometry.anchors,
        block=geometry.block,
        mask_token=geometry.mask_token,
    )
    rows = [
        make_row([(sample, own.context)], [(0, sample, anchor) for anchor in part], states, own)
        for part in _split(anchors, own.anchors)
    ]
    batch = stack(rows)
    with torch.inference_mode():
        hidden = draft(model, batch)[:, :, 1:].flatten(0, 2)
        # max takes a fifth of argmax's time over bfloat16.
        foretold = model.lm_head(hidden).max(-1).indices.numpy()
    rights: Rights = foretold == batch.targets[:, :, 1:].ravel()
    return rights.reshape(-1, geometry.block - 1)[: len(anchors)]


def _split(numbers: range, size: int) -> Iterator[range]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
