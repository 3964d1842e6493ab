"""Training on a CPU, with speculators' own model and loss weights in a loop of ours.

speculators' trainer wants an accelerator, Triton and a flex attention that has a backward
pass. Its model does not, once given an attention that runs here. Against its eager loop a
step costs a fraction: bfloat16 weights beside a float32 copy for the optimizer instead of
casts in every layer (float32 throughout where a CPU only emulates bfloat16), and a softmax
over the frequent tokens and a fresh draw of the others instead of the whole vocabulary.
"""

import importlib
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.training.anchored_attention import HIDDEN, register_attention
from slipstream.training.batches import Batch, Geometry, States, TrainSample, draw_batches
from slipstream.training.eagle3 import build_eagle3, load_eagle3, run_steps
from slipstream.training.settings import DrafterDesign, Schedule

FREQUENT_TOKENS = 4096
DRAWN_TOKENS = 1024
DPACE_ALPHA = 0.5
CHECKPOINT_EVERY_SECONDS = 120
SAMPLES_FOR_SCALE = 64


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the training stands, after a step."""

    step: int
    loss: float
    accuracy: float
    seconds: float


def build_model(
    target: Path, design: DrafterDesign, dtype: str = "bfloat16", *, seed: int = 0
) -> Any:
    """Make speculators' model of this design, with the target's embedding and head."""
    import torch
    from transformers import AutoConfig

    library = _import_quietly(design.method)
    verifier = AutoConfig.from_pretrained(target)
    text = getattr(verifier, "text_config", verifier)
    torch.manual_seed(seed)
    build = build_eagle3 if design.method == "eagle3" else _build_dflash
    return _with_scale(build(library, target, text, design), dtype)


def _build_dflash(library: Any, target: Path, text: Any, design: DrafterDesign) -> Any:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    layers = Qwen3Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=design.intermediate_size,
        num_hidden_layers=design.layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=head,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=text.rms_norm_eps,
        rope_parameters=text.rope_parameters,
        layer_types=["full_attention"] * design.layers,
        tie_word_embeddings=False,
    )
    return library.DFlashDraftModel.from_training_args(
        layers,
        draft_vocab_size=text.vocab_size,
        block_size=design.block_size,
        verifier_name_or_path=str(target),
        target_layer_ids=list(design.target_layer_ids),
        mask_token_id=design.mask_token_id,
        draft_attn_impl=register_attention(),
        # Unless told so, vLLM 0.32 serves even full attention causal: vllm#56692.
        sliding_window_non_causal=True,
    )


def load_model(folder: Path, target: Path, dtype: str = "bfloat16") -> Any:
    """Load a drafter in speculators' layout, to go on training it or to judge it."""
    method = json.loads((folder / "config.json").read_text())["speculators_model_type"]
    library = _import_quietly(method)
    if method == "eagle3":
        return _with_scale(load_eagle3(library, folder, target), dtype)
    config = library.DFlashSpeculatorConfig.from_pretrained(folder)
    config.speculators_config.verifier.name_or_path = str(target)
    config.transformer_layer_config._attn_implementation = register_attention()
    return _with_scale(library.DFlashDraftModel.from_pretrained(folder, config=config), dtype)


def even_out(model: Any, scale: Any) -> None:
    """Let the drafter read evened states from here on; what it computes stays the same.

    The deep layers' states are larger than the first ones' by an order of magnitude, and as
    much faster would their weights take effect.
    """
    import torch

    with torch.no_grad():
        model.fc.weight.mul_(model.feature_scale / scale)
    model.feature_scale = scale


def measure_scale(states: States, samples: Sequence[TrainSample]) -> Any:
    """Give one over the size of every feature, the usual token's, not the few huge ones'."""
    import torch

    chosen = samples[:: max(1, len(samples) // SAMPLES_FOR_SCALE)]
    read = np.concatenate([states.read(sample.number)[1::4] for sample in chosen])
    sizes = torch.from_numpy(read).view(torch.bfloat16).float().abs()
    return (1 / sizes.quantile(0.5, dim=0).clamp(min=1e-3)).to(torch.bfloat16)


def save_model(model: Any, folder: Path, *, verifier: str) -> None:
    """Save a drafter for vLLM, in bfloat16 and under its target's name, not its place here."""
    import torch

    dtype = model.fc.weight.dtype
    even_out(model, torch.ones_like(model.feature_scale))
    model.config.speculators_config.verifier.name_or_path = verifier
    _cast(model, torch.bfloat16)
    model.save_pretrained(folder)
    _cast(model, dtype)
    # speculators leaves its own code beside the weights, which vLLM does not need.
    (folder / "config.py").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.pop("auto_map", None)
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())


def _with_scale(model: Any, dtype: str) -> Any:
    import torch

    _cast(model, getattr(torch, dtype))
    model.feature_scale = torch.ones(model.fc.in_features, dtype=model.dtype)
    return model


def _cast(model: Any, dtype: Any) -> None:
    """Cast weights and nothing else: rounded rotary frequencies would not be the engine's."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _import_quietly(method: str) -> Any:
    """Import speculators' models without what it and transformers print while they load."""
    from loguru import logger
    from transformers.utils import logging

    logger.disable("speculators")
    logging.disable_progress_bar()
    return importlib.import_module(f"speculators.models.{method}")


def draft(model: Any, batch: Batch) -> Any:
    """Run the drafter over a batch: [rows, anchors, block, hidden], before the head."""
    hidden = run_drafter(model, *_to_tensors(batch, model.dtype))
    return hidden.reshape(*batch.targets.shape, -1)


def _to_tensors(batch: Batch, dtype: Any) -> tuple[Any, ...]:
    import torch

    visible = torch.from_numpy(batch.visible)
    return (
        torch.from_numpy(batch.states).view(torch.bfloat16).to(dtype),
        torch.from_numpy(batch.next_tokens),
        torch.from_numpy(batch.blocks),
        torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, HIDDEN),
        torch.from_numpy(batch.positions),
    )


def run_drafter(
    model: Any, states: Any, next_tokens: Any, blocks: Any, mask: Any, positions: Any
) -> Any:
    """Run a drafter of either method: [rows, anchors * block, hidden], before the head."""
    if model.config.speculators_model_type == "eagle3":
        return run_steps(model, states, next_tokens, blocks, mask, positions)
    return run_layers(model, states, model.embed_tokens(blocks), mask, positions)


def run_layers(model: Any, states: Any, blocks: Any, mask: Any, positions: Any) -> Any:
    """Run DFlash's layers as speculators does, row by row instead of packed in one."""
    context = model.hidden_norm(model.fc(states * model.feature_scale))
    rotary = model.rotary_emb(blocks, positions)
    for layer in model.layers:
        blocks = layer(
            hidden_states=blocks,
            target_hidden=context,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            position_embeddings=rotary,
        )
    return model.norm(blocks)


@dataclass(slots=True)
class Trainer:
    """A model, its float32 copy and the optimizer over that copy."""

    model: Any
    schedule: Schedule
    step: int = 0
    copies: Any = None
    optimizer: Any = None
    compiled: Any = None

    def __post_init__(self) -> None:
        import torch

        self.copies = [
            parameter.detach().float().clone().requires_grad_() for parameter in self._trained()
        ]
        self.optimizer = torch.optim.AdamW(
            self.copies,
            lr=self.schedule.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=True,
        )
        compute = self._loss
        compiled = self.schedule.compiled and shutil.which("c++") is not None
        self.compiled = torch.compile(compute, dynamic=False) if compiled else compute

    def take_step(self, batch: Batch, choice: "Candidates") -> tuple[float, float]:
        """Do one step; give the loss and the share of foretold tokens that were right."""
        import torch

        rate = self.schedule.rate_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens, targets = choice.pick(batch.targets[..., 1:].reshape(-1))
        loss, right = self.compiled(
            *_to_tensors(batch, self.model.dtype),
            self.model.lm_head.weight[torch.from_numpy(tokens)],
            torch.from_numpy(targets),
        )
        loss.backward()
        with torch.no_grad():
            for copy, parameter in zip(self.copies, self._trained(), strict=True):
                copy.grad = parameter.grad.float()
                parameter.grad = None
            torch.nn.utils.clip_grad_norm_(self.copies, 1.0)
            self.optimizer.step()
            for copy, parameter in zip(self.copies, self._trained(), strict=True):
                parameter.copy_(copy)
        self.step += 1
        return float(loss.detach()), float(right)

    def save(self, path: Path) -> None:
        """Write what is needed to go on from here."""
        import torch

        partial = path.with_suffix(".partial")
        state = {
            "step": self.step,
            "copies": self.copies,
            "optimizer": self.optimizer.state_dict(),
            "feature_scale": self.model.feature_scale,
        }
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go on from where `save` left."""
        import torch

        state = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.model.feature_scale = state["feature_scale"]
        self.optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for mine, saved, parameter in zip(
                self.copies, state["copies"], self._trained(), strict=True
            ):
                mine.copy_(saved)
                parameter.copy_(saved)

    def _trained(self) -> Iterator[Any]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def _loss(
        self,
        states: Any,
        next_tokens: Any,
        blocks: Any,
        mask: Any,
        positions: Any,
        head: Any,
        targets: Any,
    ) -> Any:
        """Cross-entropy with D-PACE's weights (https://arxiv.org/abs/2605.18810)."""
        import torch
        from speculators.losses import dpace_loss_decay

        hidden = run_drafter(self.model, states, next_tokens, blocks, mask, positions)
        block = blocks.shape[1] // mask.shape[1]
        drafted = hidden.unflatten(1, (-1, block))[:, :, 1:].flatten(0, 2)
        logits = (drafted @ head.T).float()
        counted = (targets >= 0).float()
        count = counted.sum().clamp(min=1)
        surprise = torch.nn.functional.cross_entropy(logits, targets.clamp(min=0), reduction="none")
        weights = dpace_loss_decay(
            pos_idx=None,
            loss_mask=counted[None],
            block_size=block - 1,
            dpace_alpha=DPACE_ALPHA,
            elementwise_loss=surprise.detach()[None],
        )[0]
        right = (logits.detach().argmax(-1) == targets).float().sum() / count
        return (surprise * weights).sum() / count, right


@dataclass(slots=True)
class Candidates:
    """The tokens that a step's softmax runs over: the frequent ones and a draw of the rest."""

    frequent: Any
    rest: Any
    generator: np.random.Generator

    @classmethod
    def count(
        cls, samples: Sequence[TrainSample], vocabulary: int, generator: np.random.Generator
    ) -> "Candidates":
        """Find the frequent tokens of the responses."""
        counts: Counter[int] = Counter()
        for sample in samples:
            counts.update(sample.tokens[sample.response_start :].tolist())
        ranked = [token for token, _ in counts.most_common(FREQUENT_TOKENS)]
        others = np.setdiff1d(np.arange(vocabulary), ranked)
        missing = max(0, FREQUENT_TOKENS - len(ranked))
        frequent = np.concatenate([np.array(ranked, np.int64), others[:missing]])
        return cls(frequent, others[missing:], generator)

    def pick(self, targets: Any) -> tuple[Any, Any]:
        """Give a step's tokens, and where among them each target is; -1 stays -1."""
        wanted = np.setdiff1d(targets[targets >= 0], self.frequent)[:DRAWN_TOKENS]
        drawn = self.generator.choice(
            self.rest, size=min(DRAWN_TOKENS, len(self.rest)), replace=False
        )
        others = np.concatenate([wanted, np.setdiff1d(drawn, wanted)])[: len(drawn)]
        tokens = np.concatenate([self.frequent, others])
        order = np.argsort(tokens)
        tokens = tokens[order]
        places = np.searchsorted(tokens, targets).clip(max=len(tokens) - 1)
        return tokens, np.where(tokens[places] == targets, places, -1)


def train(
    model: Any,
    samples: Sequence[TrainSample],
    states: States,
    geometry: Geometry,
    schedule: Schedule,
    checkpoint: Path,
    report: Callable[[Progress], None],
    judge: Callable[[int], None],
) -> Trainer:
    """Train from the checkpoint if there is one; `judge` is called as the schedule says."""
    trainer = Trainer(model, schedule)
    if checkpoint.exists():
        trainer.load(checkpoint)
    generator = np.random.default_rng([schedule.seed, trainer.step])
    choice = Candidates.count(samples, model.lm_head.weight.shape[0], generator)
    batches = draw_batches(samples, states, geometry, generator)
    started = saved = time.monotonic()
    while trainer.step < schedule.steps:
        loss, right = trainer.take_step(next(batches), choice)
        if not math.isfinite(loss):
            raise InvalidInputError(
                f"the loss is {loss} at step {trainer.step}",
                hint=f"train in another --run with a lower --learning-rate than "
                f"{schedule.learning_rate:g}",
            )
        report(Progress(trainer.step, loss, right, time.monotonic() - started))
        if trainer.step % schedule.judge_every == 0:
            judge(trainer.step)
        if time.monotonic() - saved > CHECKPOINT_EVERY_SECONDS or trainer.step == schedule.steps:
            trainer.save(checkpoint)
            saved = time.monotonic()
    return trainer
