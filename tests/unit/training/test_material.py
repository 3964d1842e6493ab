"""The first stages' files become samples on both sides of the split, each with its states."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import InvalidInputError
from slipstream.training import material
from slipstream.training.batches import Geometry, TrainSample, draw_batches
from slipstream.training.material import judge_kinds, list_samples, read_material
from slipstream.training.prompts import write_conversations
from slipstream.training.responses import Response
from slipstream.training.run import TrainFolder
from tests.unit.training.pieces import TellingStates, change, converse

# Two layers of one number each: as wide as what TellingStates tells.
SETTINGS = change(target_layer_ids=(2, 4), rows=2, context=64, anchors=6)
CONVERSATIONS = [
    converse("a", kind="prose"),
    converse("b", kind="prose", held_out=True),
    converse("c", kind="code", held_out=True),
    converse("d", kind="code"),
    converse("e", kind="prose", held_out=True),
]


def respond(name: str, prompt: int, response: int) -> Response:
    return Response(
        id=name,
        prompt_ids=tuple(range(100, 100 + prompt)),
        response_ids=tuple(range(200, 200 + response)),
        finish_reason="stop",
    )


def write(folder: TrainFolder, responses: Sequence[Response]) -> list[TrainSample]:
    """Lay out what the first stages leave, and return the samples that are in it."""
    folder.path.mkdir()
    write_conversations(folder.prompts, CONVERSATIONS)
    folder.responses.write_text("".join(f"{row.model_dump_json()}\n" for row in responses))
    samples = list_samples(responses)
    telling = TellingStates(samples)
    folder.states.write_bytes(b"".join(telling.read(one.number).tobytes() for one in samples))
    return samples


@pytest.fixture
def folder(tmp_path: Path) -> TrainFolder:
    return TrainFolder(tmp_path / "run")


def test_a_sample_is_prompt_and_response_and_knows_where_the_response_starts() -> None:
    (sample,) = list_samples([respond("a", 3, 4)])
    assert sample.tokens.tolist() == [100, 101, 102, 200, 201, 202, 203]
    assert (sample.response_start, sample.number, sample.row) == (3, 0, 0)


def test_a_response_of_less_than_two_tokens_is_no_sample() -> None:
    samples = list_samples([respond("a", 3, 1), respond("b", 3, 2), respond("c", 3, 0)])
    assert [(sample.number, sample.row) for sample in samples] == [(0, 1)]


def test_samples_lie_on_the_side_of_their_conversation(folder: TrainFolder) -> None:
    # Answers come in any order, and that of `b` is too short.
    rows = [respond("e", 2, 9), respond("d", 3, 4), respond("b", 2, 1), respond("c", 4, 5)]
    write(folder, [*rows, respond("a", 5, 6)])
    read = read_material(SETTINGS, folder, hidden_size=1)
    assert [len(sample.tokens) for sample in read.training] == [7, 11]
    assert list(read.held_out) == ["code", "prose"]
    assert [one.id for one in read.held_out_conversations("prose")] == ["e"]
    ((conversation, sample),) = read.held_out["code"]
    assert (conversation.id, len(sample.tokens)) == ("c", 9)


def test_every_sample_has_its_own_states(folder: TrainFolder) -> None:
    rows = [respond("b", 2, 1), respond("a", 5, 6), respond("d", 3, 4), respond("c", 4, 5)]
    samples = write(folder, rows)
    read = read_material(SETTINGS, folder, hidden_size=1)
    held_out = [sample for pairs in read.held_out.values() for _, sample in pairs]
    for sample in (*read.training, *held_out):
        expected = TellingStates(samples).read(sample.number)
        assert np.array_equal(read.states.read(sample.number), expected)
        assert len(expected) == len(sample.tokens)
    assert len(read.training) + len(held_out) == 3


def test_the_geometry_is_that_of_the_settings(folder: TrainFolder) -> None:
    write(folder, [respond("a", 5, 6)])
    read = read_material(SETTINGS, folder, hidden_size=1)
    assert read.geometry == Geometry(rows=2, context=64, anchors=6, block=4, mask_token=3)


def test_material_without_a_sample_to_train_on_is_refused(folder: TrainFolder) -> None:
    write(folder, [respond("a", 5, 1), respond("c", 4, 5), respond("d", 3, 0)])
    with pytest.raises(InvalidInputError) as caught:
        read_material(SETTINGS, folder, hidden_size=1)
    assert caught.value.message == (
        f"none of the responses to train on in {folder.responses} "
        "has two tokens within the first 64"
    )
    assert caught.value.hint == "train with a larger --max-tokens, or with shorter prompts"


def test_a_response_that_starts_too_late_to_hold_an_anchor_is_not_trained_on(
    folder: TrainFolder,
) -> None:
    write(folder, [respond("a", 63, 9), respond("d", 62, 9), respond("c", 63, 9)])
    read = read_material(SETTINGS, folder, hidden_size=1)
    assert [sample.response_start for sample in read.training] == [62]
    # Judging takes a sample whole, however long its prompt.
    assert [one.id for one in read.held_out_conversations("code")] == ["c"]


def test_every_sample_to_train_on_gives_a_row_an_anchor(folder: TrainFolder) -> None:
    write(folder, [respond("a", 62, 9)])
    read = read_material(SETTINGS, folder, hidden_size=1)
    batch = next(draw_batches(read.training, read.states, read.geometry, np.random.default_rng(0)))
    assert ((batch.targets >= 0).sum((1, 2)) > 0).all()


def test_prompts_that_are_all_too_long_are_refused(folder: TrainFolder) -> None:
    write(folder, [respond("a", 63, 9), respond("d", 80, 9), respond("c", 4, 5)])
    with pytest.raises(InvalidInputError, match="has two tokens within the first 64"):
        read_material(SETTINGS, folder, hidden_size=1)


def test_held_out_samples_stand_in_the_order_of_the_prompts(folder: TrainFolder) -> None:
    write(folder, [respond("e", 2, 9), respond("a", 3, 4), respond("b", 2, 3)])
    read = read_material(SETTINGS, folder, hidden_size=1)
    assert [one.id for one in read.held_out_conversations("prose")] == ["b", "e"]


@pytest.mark.parametrize(("limit", "judged"), [(1, [2, 3]), (9, [2, 3, 0])])
def test_a_drafter_is_judged_on_the_first_held_out_samples_of_every_kind(
    folder: TrainFolder, monkeypatch: pytest.MonkeyPatch, limit: int, judged: list[int]
) -> None:
    write(folder, [respond("e", 2, 9), respond("a", 3, 4), respond("c", 4, 5), respond("b", 2, 3)])
    read = read_material(SETTINGS, folder, hidden_size=1)
    asked: list[int] = []

    def judge(model: Any, sample: TrainSample, states: Any, geometry: Geometry) -> Any:
        assert (model, states, geometry) == ("model", read.states, read.geometry)
        asked.append(sample.number)
        return sample.number

    monkeypatch.setattr(material, "judge_sample", judge)
    rights: Any = judge_kinds("model", read, limit)
    assert asked == judged
    assert list(rights) == ["code", "prose"]
    assert [*rights["code"], *rights["prose"]] == judged
