"""Drafts are evaluated at every anchor once; a walk counts those that an engine would make."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.steering.drafts import Drafts
from slipstream.training.cpu.acceptance import (
    Rights,
    SplitSamples,
    average_everywhere,
    evaluate_kinds,
    evaluate_sample,
    read_material,
    walk,
)
from slipstream.training.cpu.batches import (
    CHOICES,
    Floats,
    Geometry,
    Numbers,
    TrainSample,
    list_samples,
)
from slipstream.training.prompts import write_conversations
from slipstream.training.responses import Response
from slipstream.training.run import TrainFolder
from tests.unit.training.cpu.test_batches import keep
from tests.unit.training.pieces import TellingStates, change, converse


def make_texts(seed: int, width: int, lengths: list[int], share: float) -> list[Rights]:
    """Make evaluated texts in which about this share of tokens is right."""
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
    drafts = average_everywhere([rights("++-", "-++", "+-+")])
    assert drafts == Drafts(drafts=3, drafted=9, accepted=(2, 1, 0))
    assert drafts.tokens_per_step == pytest.approx(1 + (2 + 0 + 1) / 3)


def test_a_walk_drafts_again_after_the_accepted_tokens_and_the_targets_own() -> None:
    # From 0 two tokens hold, so the next draft is at 3; from there none, then 4, then the end.
    text = rights("++-", "---", "---", "-++", "+--", "+++")
    assert walk([text]) == Drafts(drafts=3, drafted=9, accepted=(2, 1, 0))
    # It begins anew with every text.
    drafts = walk([rights("+++", "---"), rights("---")])
    assert drafts == Drafts(drafts=2, drafted=6, accepted=(1, 1, 1))


@given(TEXTS)
def test_a_walk_comes_to_the_end_of_every_text_and_hardly_beyond(texts: list[Rights]) -> None:
    drafts, everywhere = walk(texts), average_everywhere(texts)
    brought, there = drafts.drafts + sum(drafts.accepted), sum(map(len, texts))
    assert there <= brought <= there + len(texts) * texts[0].shape[1]
    assert drafts.drafts <= everywhere.drafts == there
    for figure in (drafts, everywhere):
        assert list(figure.accepted) == sorted(figure.accepted, reverse=True)
    wrong = [np.zeros_like(text) for text in texts]
    assert walk(wrong) == average_everywhere(wrong)
    assert walk(wrong).tokens_per_step == 1


SIZE, BLOCK, VOCABULARY = 4, 4, 40


class CountingStates:
    """States of a text whose tokens count up: the token itself, in every feature."""

    def __init__(self, samples: Sequence[TrainSample]) -> None:
        self.samples = samples

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        import torch

        tokens = torch.from_numpy(self.samples[number].tokens).to(torch.bfloat16)
        bits = tokens[:, None].expand(-1, SIZE).contiguous().view(torch.uint16)
        return np.asarray(bits.numpy())

    def read_choices(self, number: int) -> tuple[Numbers, Floats]:
        """Return nothing of use: a draft is evaluated by the text alone."""
        shape = (len(self.samples[number].tokens), CHOICES)
        return np.zeros(shape, np.int64), np.zeros(shape, np.float32)


def make_model(step: int = 1) -> Any:
    """Make a drafter of 4 x 4 + 2 x 40 weights with DFlash's parts and one layer.

    The layer adds to each block the last state that it sees and its place after it, so in a text
    that counts up by one it predicts every token; by any other `step` it is wrong.
    """
    import torch

    def layer(*, hidden_states: Any, target_hidden: Any, attention_mask: Any, **_: Any) -> Any:
        seen = attention_mask == 0
        last = (target_hidden[:, None, :, 0] * seen).amax(-1)
        places = torch.arange(BLOCK) * step + 1
        tokens = last[:, :, None] + places
        return tokens.flatten(1)[..., None].expand(hidden_states.shape)

    head = torch.nn.Linear(SIZE, VOCABULARY)
    with torch.no_grad():  # The logit of token t is largest where the hidden value is t.
        count = torch.arange(VOCABULARY).float()
        head.weight.copy_(count[:, None].expand(-1, SIZE) / SIZE)
        head.bias.copy_(-(count**2) / 2)
    fused = torch.nn.Linear(SIZE, SIZE, bias=False)
    torch.nn.init.eye_(fused.weight)
    same = torch.nn.Identity()
    return SimpleNamespace(
        config=SimpleNamespace(speculators_model_type="dflash"),
        dtype=torch.float32,
        feature_scale=torch.ones(SIZE),
        embed_tokens=torch.nn.Embedding(VOCABULARY, SIZE),
        rotary_emb=lambda *_: None,
        hidden_norm=same,
        norm=same,
        fc=fused,
        layers=[layer],
        lm_head=head,
    )


def count_up(prompt: int, response: int) -> TrainSample:
    return TrainSample(tokens=np.arange(1, 1 + prompt + response), response_start=prompt, number=0)


@pytest.mark.parametrize("response", [2, 3, 9, 17, 30])
@pytest.mark.parametrize(("rows", "anchors"), [(1, 1), (2, 4), (3, 8)])
def test_every_anchor_is_judged_in_order_by_what_stands_before_it(
    response: int, rows: int, anchors: int
) -> None:
    sample = count_up(5, response)
    geometry = Geometry(rows=rows, context=16, anchors=anchors, block=BLOCK, mask_token=3)
    evaluated = evaluate_sample(make_model(), sample, CountingStates([sample]), geometry)
    # Past the end of the text there is nothing to be right about.
    left = [response - 1 - at for at in range(response - 1)]
    assert evaluated.tolist() == [[place < more for place in range(BLOCK - 1)] for more in left]
    assert not evaluate_sample(make_model(step=2), sample, CountingStates([sample]), geometry).any()


# Two layers of one number each: as wide as what TellingStates tells.
SETTINGS = change(target_layer_ids=(2, 4), rows=2, context=64, anchors=6)
CONVERSATIONS = [
    converse("a", kind="prose"),
    converse("b", kind="prose", held_out=True),
    converse("c", kind="code", held_out=True),
    converse("d", kind="code"),
    converse("e", kind="prose", held_out=True),
]
Responses = dict[str, tuple[int, int]]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Responses], SplitSamples]:
    """Return a function that lays out what the first stages leave, and reads it."""

    def read(lengths: Responses) -> SplitSamples:
        folder = TrainFolder(tmp_path)
        responses = [
            Response(
                id=name,
                prompt_ids=tuple(range(100, 100 + prompt)),
                response_ids=tuple(range(200, 200 + response)),
                finish_reason="stop",
            )
            for name, (prompt, response) in lengths.items()
        ]
        write_conversations(folder.prompts, CONVERSATIONS)
        folder.responses.write_text("".join(f"{row.model_dump_json()}\n" for row in responses))
        samples = list_samples(responses)
        told = TellingStates(samples)
        folder.states.write_bytes(b"".join(keep(told, one.number).tobytes() for one in samples))
        return read_material(SETTINGS, folder, hidden_size=1)

    return read


def test_samples_lie_on_the_side_of_their_conversation_with_their_own_states(
    read: Callable[[Responses], SplitSamples],
) -> None:
    # Answers come in any order, and may be too short.
    lengths = {"e": (2, 9), "d": (3, 4), "b": (2, 3), "c": (4, 5), "a": (5, 6)}
    material = read(lengths)
    assert [sample.id for sample in material.training] == ["d", "a"]
    held_out = {kind: [one.id for one in held] for kind, held in material.held_out.items()}
    # Those held out come in the order of the prompts.
    assert held_out == {"code": ["c"], "prose": ["b", "e"]}
    for sample in (*material.training, *material.held_out["code"]):
        states = material.states.read(sample.number)
        assert states[:, 0].tolist() == [sample.number + 1] * len(sample.tokens)
    assert material.geometry == Geometry(rows=2, context=64, anchors=6, block=4, mask_token=3)
    assert [one.id for one in read({**lengths, "b": (2, 1)}).held_out["prose"]] == ["e"]


def test_only_a_response_that_can_hold_an_anchor_is_trained_on(
    read: Callable[[Responses], SplitSamples],
) -> None:
    material = read({"a": (63, 9), "d": (62, 9), "c": (63, 9)})
    assert [sample.id for sample in material.training] == ["d"]
    # Judging takes a sample whole, however long its prompt.
    assert [sample.id for sample in material.held_out["code"]] == ["c"]


@pytest.mark.parametrize(
    "lengths", [{"a": (5, 1), "c": (4, 5), "d": (3, 0)}, {"a": (63, 9), "d": (80, 9), "c": (4, 5)}]
)
def test_material_without_a_sample_to_train_on_is_refused(
    lengths: Responses, read: Callable[[Responses], SplitSamples]
) -> None:
    with pytest.raises(InvalidInputError, match="none of the responses to train on"):
        read(lengths)


@pytest.mark.parametrize(("limit", "evaluated"), [(1, [1, 1]), (9, [1, 2])])
def test_the_first_held_out_samples_of_every_kind_are_judged(
    limit: int, evaluated: list[int]
) -> None:
    samples = [count_up(5, 4), count_up(5, 6), count_up(5, 8)]
    longest = CountingStates(samples[2:] * 3)
    geometry = Geometry(rows=1, context=16, anchors=8, block=BLOCK, mask_token=3)
    held_out = {"code": samples[:1], "prose": samples[1:]}
    found = evaluate_kinds(make_model(), SplitSamples([], held_out, longest, geometry), limit)
    assert [len(texts) for texts in found.values()] == evaluated
    assert [len(texts[0]) for texts in found.values()] == [3, 5]
