"""Training on a CPU, with speculators' own model in a loop of ours.

speculators' trainer wants an accelerator, Triton and a flex attention that has a backward
pass. Its model does not, once given an attention that runs here. Against its eager loop a
step costs a fraction: bfloat16 weights beside a float32 copy for the optimizer instead of
casts in every layer (float32 throughout where a CPU only emulates bfloat16), and a softmax
over the frequent tokens and a fresh draw of the others instead of the whole vocabulary.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.errors import InvalidInputError
from slipstream.training.cpu.batches import (
    CHOICES,
    Batch,
    Geometry,
    States,
    TrainSample,
    draw_batches,
)
from slipstream.training.cpu.forward import run_drafter, to_tensors
from slipstream.training.cpu.loss import SampledVocabulary, compute_loss
from slipstream.training.run import Schedule

CHECKPOINT_EVERY_SECONDS = 120


@dataclass(slots=True)
class Trainer:
    """A model, its float32 copy and the optimizers over that copy."""

    model: Any
    schedule: Schedule
    step: int = 0
    copies: Any = None
    optimizers: Any = None
    compiled: Any = None

    def __post_init__(self) -> None:
        import torch

        self.copies = [
            parameter.detach().float().clone().requires_grad_() for parameter in self._trained()
        ]
        # One learning rate serves both: Muon's steps are scaled to the size of Adam's.
        rate, matched = self.schedule.learning_rate, "match_rms_adamw"
        matrices = [copy for copy in self.copies if copy.ndim == 2]
        norms = [copy for copy in self.copies if copy.ndim != 2]
        self.optimizers = (
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn=matched),
            torch.optim.Adam(norms, lr=rate, betas=(0.9, 0.95), fused=True),
        )
        compute = self._loss
        compiled = self.schedule.compiled and shutil.which("c++") is not None
        self.compiled = torch.compile(compute, dynamic=False) if compiled else compute

    def take_step(self, batch: Batch, choice: SampledVocabulary) -> float:
        import torch

        tokens, *labels = choice.pick(
            batch.targets[..., 1:].reshape(-1),
            batch.choices.reshape(-1, CHOICES),
            batch.shares.reshape(-1, CHOICES),
        )
        loss = self.compiled(
            *to_tensors(batch, self.model.dtype),
            self.model.lm_head.weight[torch.from_numpy(tokens)],
            *map(torch.from_numpy, labels),
        )
        loss.backward()
        with torch.no_grad():
            for copy, parameter in zip(self.copies, self._trained(), strict=True):
                copy.grad = parameter.grad.float()
                parameter.grad = None
            torch.nn.utils.clip_grad_norm_(self.copies, 1.0)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.schedule.rate_at(self.step)
                optimizer.step()
            for copy, parameter in zip(self.copies, self._trained(), strict=True):
                parameter.copy_(copy)
        self.step += 1
        return float(loss.detach())

    def save(self, path: Path) -> None:
        import torch

        partial = path.with_suffix(".partial")
        state = {
            "step": self.step,
            "copies": self.copies,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "feature_scale": self.model.feature_scale,
        }
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        import torch

        state = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.model.feature_scale = state["feature_scale"]
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
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
        *labels: Any,
    ) -> Any:
        hidden = run_drafter(self.model, states, next_tokens, blocks, mask, positions)
        block = blocks.shape[1] // mask.shape[1]
        drafted = hidden.unflatten(1, (-1, block))[:, :, 1:].flatten(0, 2)
        return compute_loss(drafted, head, labels, block)

    def write_weights(self) -> None:
        """Put the float32 weights into the model, to be rounded once, when it is saved."""
        for copy, parameter in zip(self.copies, self._trained(), strict=True):
            parameter.data = copy.detach()


def train(
    model: Any,
    samples: Sequence[TrainSample],
    states: States,
    geometry: Geometry,
    schedule: Schedule,
    checkpoint: Path,
    report: Callable[[int, float], None],
    evaluate: Callable[[int, float], bool | None],
    save_every_seconds: float = CHECKPOINT_EVERY_SECONDS,
) -> None:
    """Train from the checkpoint if there is one; `evaluate` is called as the schedule says.

    `report` gets every step with its loss, `evaluate` a step and the seconds since the start: it
    returns whether that is enough.
    """
    trainer = Trainer(model, schedule)
    if checkpoint.exists():
        trainer.load(checkpoint)
    generator = np.random.default_rng([schedule.seed, trainer.step])
    choice = SampledVocabulary.count(samples, model.lm_head.weight.shape[0], generator)
    batches = draw_batches(samples, states, geometry, generator)
    started = saved = time.monotonic()
    while trainer.step < schedule.steps:
        loss = trainer.take_step(next(batches), choice)
        if not math.isfinite(loss):
            raise InvalidInputError(
                f"the loss is {loss} at step {trainer.step}",
                hint=f"train in another --run with a --learning-rate below "
                f"{schedule.learning_rate:g}",
            )
        report(trainer.step, loss)
        is_due = trainer.step % schedule.evaluate_every == 0
        if is_due and evaluate(trainer.step, time.monotonic() - started):
            break
        if time.monotonic() - saved > save_every_seconds or trainer.step == schedule.steps:
            trainer.save(checkpoint)
            saved = time.monotonic()
    trainer.write_weights()
