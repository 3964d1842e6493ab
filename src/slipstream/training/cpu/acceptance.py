"""How many of a drafter's tokens a target would accept, from held-out text alone.

Greedy text is known beforehand, so every draft can be evaluated without the engine. Two figures
come of it. `uniform` drafts at every position and averages, as speculators does while it
trains. `walked` goes through the text as the engine does: draft, take the accepted tokens and
the target's own next one, draft again there. A walk starts anew where a draft failed, which is
where text is hard to predict, so `walked` is the lower one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import InvalidInputError
from slipstream.steering.drafts import Drafts
from slipstream.training.cpu.batches import (
    Geometry,
    SamplePart,
    States,
    TrainSample,
    list_samples,
    make_row,
    open_states,
    stack,
)
from slipstream.training.cpu.forward import draft
from slipstream.training.prompts import read_conversations
from slipstream.training.responses import read_responses
from slipstream.training.run import TrainFolder, TrainSettings

Rights = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SplitSamples:
    """What the first stages left: samples on both sides of the split, with their states."""

    training: list[TrainSample]
    held_out: dict[str, list[TrainSample]]
    states: States
    geometry: Geometry


def read_material(settings: TrainSettings, folder: TrainFolder, hidden_size: int) -> SplitSamples:
    """Read what the first stages left; held-out samples come in the order of the prompts."""
    samples = list_samples(read_responses(folder.responses))
    by_id = {sample.id: sample for sample in samples}
    training: list[TrainSample] = []
    held_out: dict[str, list[TrainSample]] = {}
    for conversation in read_conversations(folder.prompts):
        sample = by_id.get(conversation.id)
        if sample is not None and conversation.held_out:
            held_out.setdefault(conversation.kind, []).append(sample)
        elif sample is not None and sample.response_start < settings.schedule.context - 1:
            training.append(sample)
    if not training:
        raise InvalidInputError(
            f"none of the responses to train on in {folder.responses} has two tokens within the "
            f"first {settings.schedule.context}",
            hint="train with a larger --max-tokens, or with shorter prompts",
        )
    width = len(settings.design.target_layer_ids) * hidden_size
    return SplitSamples(
        training=sorted(training, key=lambda sample: sample.number),
        held_out=dict(sorted(held_out.items())),
        states=open_states(folder.states, samples, width),
        geometry=Geometry(
            rows=settings.schedule.rows,
            context=settings.schedule.context,
            anchors=settings.schedule.anchors,
            block=settings.design.block_size,
            mask_token=settings.design.mask_token_id,
        ),
    )


def evaluate_kinds(model: Any, material: SplitSamples, limit: int) -> dict[str, list[Rights]]:
    """Evaluate a drafter on the first held-out samples of every kind."""
    return {
        kind: [
            evaluate_sample(model, sample, material.states, material.geometry)
            for sample in samples[:limit]
        ]
        for kind, samples in material.held_out.items()
    }


def evaluate_sample(model: Any, sample: TrainSample, states: States, geometry: Geometry) -> Rights:
    """Return which draft tokens are right at every anchor of a response: [anchors, block - 1]."""
    anchors = range(sample.response_start, len(sample.tokens) - 1)
    return np.concatenate(
        [
            _evaluate_rows(model, sample, part, states, geometry)
            for part in _split(anchors, geometry.anchors * geometry.rows)
        ]
    )


def average_everywhere(rights: Sequence[Rights]) -> Drafts:
    return _count([row for sample in rights for row in sample])


def walk(rights: Sequence[Rights]) -> Drafts:
    """Count the drafts that an engine would make."""
    return _count([sample[step] for sample in rights for step in _steps_of(sample)])


def _steps_of(rights: Rights) -> Iterator[int]:
    step = 0
    while step < len(rights):
        yield step
        step += 1 + int(np.cumprod(rights[step]).sum())


def _count(drafts: Sequence[Rights]) -> Drafts:
    held = np.cumprod(np.array(drafts), axis=1)
    return Drafts(drafts=len(drafts), drafted=held.size, accepted=tuple(held.sum(0).tolist()))


def _evaluate_rows(
    model: Any, sample: TrainSample, anchors: range, states: States, geometry: Geometry
) -> Rights:
    import torch

    own = replace(geometry, rows=1, context=len(sample.tokens))
    whole = SamplePart(0, sample, 0, own.context)
    batch = stack(
        [
            make_row([whole], [(whole, place) for place in places], states, own)
            for places in _split(anchors, own.anchors)
        ]
    )
    with torch.inference_mode():
        hidden = draft(model, batch)[:, :, 1:].flatten(0, 2)
        # max takes a fifth of argmax's time over bfloat16.
        predicted = model.lm_head(hidden).max(-1).indices.numpy()
    rights: Rights = predicted == batch.targets[:, :, 1:].ravel()
    return rights.reshape(-1, geometry.block - 1)[: len(anchors)]


def _split(numbers: range, size: int) -> Iterator[range]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
