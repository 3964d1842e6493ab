"""The CPU lane computes what speculators computes, and learns."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.training.cpu.batches import (
    CHOICES,
    Anchor,
    Batch,
    Floats,
    Geometry,
    Numbers,
    SamplePart,
    TrainSample,
    make_row,
)
from slipstream.training.cpu.forward import ATTENTION, draft
from slipstream.training.cpu.loss import SampledVocabulary
from slipstream.training.cpu.models import (
    build_model,
    load_model,
    save_model,
    start_from_target,
)
from slipstream.training.cpu.trainer import Trainer
from slipstream.training.run import DrafterDesign, Schedule

pytestmark = [
    pytest.mark.engine,
    pytest.mark.beside,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]

DESIGN = DrafterDesign(
    layers=2, intermediate_size=256, block_size=4, target_layer_ids=(2, 15, 28), mask_token_id=3
)
HEAD = DrafterDesign(
    method="eagle3",
    layers=1,
    intermediate_size=256,
    block_size=4,
    target_layer_ids=(2, 15, 28),
    mask_token_id=None,
)
HIDDEN = 576
GEOMETRY = Geometry(rows=1, context=40, anchors=6, block=4, mask_token=3)


class RandomStates:
    """States of samples, made up but the same at every reading."""

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        generator = torch.Generator().manual_seed(number)
        states = torch.randn(32, len(DESIGN.target_layer_ids) * HIDDEN, generator=generator)
        return np.asarray(states.bfloat16().view(torch.uint16).numpy())

    def read_choices(self, number: int) -> tuple[Numbers, Floats]:
        """Return choices without a share, so that the text itself is learnt."""
        return np.zeros((32, CHOICES), np.int64), np.zeros((32, CHOICES), np.float32)


def make_samples(lengths: Sequence[int]) -> list[TrainSample]:
    generator = np.random.default_rng(1)
    return [
        TrainSample(tokens=generator.integers(10, 4000, length), response_start=5, number=number)
        for number, length in enumerate(lengths)
    ]


def make_parts() -> list[SamplePart]:
    first, second = make_samples([18, 22])
    return [SamplePart(0, first, 0, 18), SamplePart(18, second, 0, 22)]


def make_pair(mask_token: int | None) -> tuple[Batch, list[Anchor]]:
    """Return a row of two texts with two anchors in each, and the anchors."""
    parts = make_parts()
    anchors = [(parts[0], 6), (parts[0], 12), (parts[1], 5), (parts[1], 13)]
    geometry = replace(GEOMETRY, mask_token=mask_token)
    return make_row(parts, anchors, RandomStates(), geometry), anchors


def make_text(mask_token: int | None) -> tuple[Batch, SampledVocabulary]:
    """Return a batch of three anchors in one text, and the tokens to choose from."""
    samples = make_samples([24])
    part = SamplePart(0, samples[0], 0, 24)
    anchors = [(part, at) for at in (6, 9, 12)]
    geometry = replace(GEOMETRY, mask_token=mask_token)
    batch = make_row([part], anchors, RandomStates(), geometry)
    return batch, SampledVocabulary.count(samples, 49152, np.random.default_rng(0))


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return build_model(target, DESIGN)


def compute_as_speculators_does(model: Any, samples: list[TrainSample], anchors: list[int]) -> Any:
    """Pack the samples in one row, and ask for exactly these anchors."""
    states = np.concatenate([RandomStates().read(s.number)[: len(s.tokens)] for s in samples])
    length = len(states)
    wanted = torch.zeros(1, length)
    wanted[0, anchors] = 1
    documents = torch.cat(
        [torch.full((len(sample.tokens),), number) for number, sample in enumerate(samples)]
    )[None]
    positions = torch.cat([torch.arange(len(sample.tokens)) for sample in samples])[None]
    model.layers[0].self_attn.config._attn_implementation = "sdpa"
    try:
        _, logits, *_ = model._backbone_forward(
            torch.from_numpy(states).view(torch.bfloat16)[None],
            torch.from_numpy(np.concatenate([sample.tokens for sample in samples]))[None],
            wanted,
            torch.zeros(1, length, HIDDEN, dtype=torch.bfloat16),
            documents,
            positions,
            max_anchors=len(anchors),
        )
    finally:
        model.layers[0].self_attn.config._attn_implementation = ATTENTION
    return logits[0]


def test_blocks_come_out_as_in_speculators(model: Any) -> None:
    row, anchors = make_pair(mask_token=3)
    samples = [anchors[0][0].sample, anchors[2][0].sample]
    with torch.inference_mode():
        ours = model.lm_head(draft(model, row))[0, :4].reshape(16, -1).float()
        theirs = compute_as_speculators_does(model, samples, [6, 12, 18 + 5, 18 + 13]).float()
    worst = (ours - theirs).abs().max() / theirs.abs().max()
    assert worst < 0.02
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9
    assert theirs.std() > 0


def test_positions_are_rotated_as_exactly_as_in_the_engine(model: Any) -> None:
    assert model.dtype == torch.bfloat16
    exact = 100_000.0 ** (-torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(model.rotary_emb.inv_freq, exact)


def test_a_block_sees_nothing_from_its_anchor_on(model: Any) -> None:
    parts = make_parts()
    row = make_row(parts, [(parts[1], 9)], RandomStates(), GEOMETRY)
    changed = row.states.copy()
    changed[0, 18 + 9 :] = 0
    changed[0, :18] = 0
    other = replace(row, states=changed)
    with torch.inference_mode():
        first, second = draft(model, row)[0, 0], draft(model, other)[0, 0]
        seen = changed.copy()
        seen[0, 18 + 8] = 0
        third = draft(model, replace(row, states=seen))[0, 0]
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_training_learns_one_text_by_heart_and_goes_on_after_a_stop(
    target: Path, tmp_path: Path
) -> None:
    batch, choice = make_text(mask_token=3)
    trainer = Trainer(build_model(target, DESIGN), Schedule(steps=60, compiled=False, warm_up=0.1))
    losses = [trainer.take_step(batch, choice) for _ in range(40)]
    assert losses[-1] < losses[0] / 20

    trainer.save(tmp_path / "checkpoint.pt")
    again = Trainer(build_model(target, DESIGN, seed=7), trainer.schedule)
    again.load(tmp_path / "checkpoint.pt")
    assert again.step == 40
    assert again.take_step(batch, choice) == pytest.approx(losses[-1], rel=0.5)

    save_model(trainer.model, tmp_path / "drafter", verifier="SmolLM2-135M-Instruct")
    loaded = load_model(tmp_path / "drafter", target)
    with torch.inference_mode():
        assert torch.equal(draft(loaded, batch), draft(trainer.model, batch))


def test_a_drafter_starts_as_the_targets_last_layers(target: Path) -> None:
    """Its keys and values of the context are the target's own, but for the norm of the keys."""
    design = DESIGN.model_copy(update={"intermediate_size": 1536})
    model = build_model(target, design, "float32")
    model.feature_scale = torch.rand_like(model.feature_scale) + 0.5
    read = RandomStates().read(0)
    assert start_from_target(model, target, read)
    whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).model
    states = torch.from_numpy(read).view(torch.bfloat16).float()
    with torch.inference_mode():
        context = model.hidden_norm(model.fc(states * model.feature_scale))
        for own, source in zip(model.layers, whole.layers[-2:], strict=True):
            expected = source.input_layernorm(states[:, -HIDDEN:])
            for name in ("k_proj", "v_proj"):
                ours = getattr(own.self_attn, name)(context)
                theirs = getattr(source.self_attn, name)(expected)
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
            assert torch.equal(own.mlp.up_proj.weight, source.mlp.up_proj.weight)


def test_a_drafter_of_another_shape_does_not_start_from_the_target(
    model: Any, target: Path
) -> None:
    before = model.fc.weight.clone()
    assert not start_from_target(model, target, RandomStates().read(0))
    assert torch.equal(model.fc.weight, before)


@pytest.fixture(scope="module")
def head(target: Path) -> Any:
    return build_model(target, HEAD, "float32")


def run_eagle3_as_speculators_does(model: Any, sample: TrainSample, steps: int) -> list[Any]:
    """Return what each step gives at every position of a text, before the head."""
    outputs: list[Any] = []
    hook = model.norm.register_forward_hook(lambda _, __, output: outputs.append(output[0]))
    length = len(sample.tokens)
    states = torch.from_numpy(RandomStates().read(sample.number)[: length - 1])
    try:
        model.forward(
            hidden_states=states.view(torch.bfloat16)[None].to(model.dtype),
            input_ids=torch.from_numpy(sample.tokens[1:])[None],
            document_ids=torch.zeros(1, length - 1, dtype=torch.long),
            position_ids=torch.arange(1, length)[None],
            ttt_steps=steps,
        )
    finally:
        hook.remove()
    return outputs


def test_an_eagle3_head_computes_from_anchors_what_speculators_does_everywhere(head: Any) -> None:
    row, anchors = make_pair(mask_token=None)
    samples = [anchors[0][0].sample, anchors[2][0].sample]
    with torch.inference_mode():
        ours = draft(head, row)[0, :, 1:].float()
        theirs = [run_eagle3_as_speculators_does(head, sample, steps=3) for sample in samples]
    for slot, (part, anchor) in enumerate(anchors):
        for step in range(3):
            expected = theirs[part.sample.number][step][anchor - 1].float()
            assert (ours[slot, step] - expected).abs().max() < 1e-3 * expected.abs().max()


def test_an_eagle3_head_learns_by_heart_and_is_saved_without_the_targets_weights(
    head: Any, target: Path, tmp_path: Path
) -> None:
    batch, choice = make_text(mask_token=None)
    schedule = Schedule(steps=40, learning_rate=2e-3, compiled=False, warm_up=0.1)
    trainer = Trainer(head, schedule)
    losses = [trainer.take_step(batch, choice) for _ in range(20)]
    assert losses[-1] < losses[0] / 20

    save_model(head, tmp_path, verifier="SmolLM2-135M-Instruct")
    assert (tmp_path / "model.safetensors").stat().st_size < 8_000_000
    loaded = load_model(tmp_path, target, "float32")
    with torch.inference_mode():
        assert torch.equal(draft(loaded, batch), draft(head, batch))
    assert torch.equal(loaded.lm_head.weight, head.lm_head.weight)
