"""The results of the first stages: samples on both sides of the split, and states."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from slipstream.errors import InvalidInputError
from slipstream.training.acceptance import Rights, judge_sample
from slipstream.training.batches import Geometry, States, TrainSample
from slipstream.training.prompts import Conversation, read_conversations
from slipstream.training.responses import Response, read_responses
from slipstream.training.run import TrainFolder, TrainSettings
from slipstream.training.states import open_states


@dataclass(frozen=True, slots=True)
class Material:
    """Samples on both sides of the split, with their states."""

    training: list[TrainSample]
    held_out: dict[str, list[tuple[Conversation, TrainSample]]]
    states: States
    geometry: Geometry

    def held_out_conversations(self, kind: str) -> list[Conversation]:
        """Return the held-out conversations of a kind."""
        return [conversation for conversation, _ in self.held_out[kind]]


def read_material(settings: TrainSettings, folder: TrainFolder, hidden_size: int) -> Material:
    """Read what the first stages left."""
    rows = read_responses(folder.responses)
    samples = list_samples(rows)
    asked = {row.id: row for row in read_conversations(folder.prompts)}
    width = len(settings.design.target_layer_ids) * hidden_size
    pairs = [(asked[rows[sample.row].id], sample) for sample in samples]
    training = [
        sample
        for conversation, sample in pairs
        if not conversation.held_out and sample.response_start < settings.schedule.context - 1
    ]
    if not training:
        raise InvalidInputError(
            f"none of the responses to train on in {folder.responses} has two tokens within the "
            f"first {settings.schedule.context}",
            hint="train with a larger --max-tokens, or with shorter prompts",
        )
    # Answers came in any order: the first of a kind are to be those that will be served.
    order = {name: place for place, name in enumerate(asked)}
    held_out = sorted(
        (pair for pair in pairs if pair[0].held_out),
        key=lambda pair: (pair[0].kind, order[pair[0].id]),
    )
    return Material(
        training=training,
        held_out={
            kind: list(group) for kind, group in groupby(held_out, key=lambda pair: pair[0].kind)
        },
        states=open_states(folder.states, samples, width),
        geometry=Geometry(
            rows=settings.schedule.rows,
            context=settings.schedule.context,
            anchors=settings.schedule.anchors,
            block=settings.design.block_size,
            mask_token=settings.design.mask_token_id,
        ),
    )


def judge_kinds(model: Any, material: Material, limit: int) -> dict[str, list[Rights]]:
    """Measure a drafter on the first held-out samples of every kind."""
    return {
        kind: [
            judge_sample(model, sample, material.states, material.geometry)
            for _, sample in pairs[:limit]
        ]
        for kind, pairs in material.held_out.items()
    }


def list_samples(responses: Sequence[Response]) -> list[TrainSample]:
    """Return the responses that are long enough to draft in, numbered."""
    long_enough = [
        (row, response) for row, response in enumerate(responses) if len(response.response_ids) >= 2
    ]
    return [
        TrainSample(
            tokens=np.array((*response.prompt_ids, *response.response_ids), np.int64),
            response_start=len(response.prompt_ids),
            number=number,
            row=row,
        )
        for number, (row, response) in enumerate(long_enough)
    ]
