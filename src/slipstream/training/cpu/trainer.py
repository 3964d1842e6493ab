"""Training on a CPU, with speculators' own model and loss weights in a loop of ours.

speculators' trainer wants an accelerator, Triton and a flex attention that has a backward
pass. Its model does not, once given an attention that runs here. Against its eager loop a
step costs a fraction: bfloat16 weights beside a float32 copy for the optimizer instead of
casts in every layer (float32 throughout where a CPU only emulates bfloat16), and a softmax
over the frequent tokens and a fresh draw of the others instead of the whole vocabulary.
"""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.errors import InvalidInputError
from slipstream.training.cpu.batches import Batch, Geometry, States, TrainSample, draw_batches
from slipstream.training.cpu.forward import run_drafter, to_tensors
from slipstream.training.run import Schedule

FREQUENT_TOKENS = 4096
DRAWN_TOKENS = 1024
DPACE_ALPHA = 0.5
CHECKPOINT_EVERY_SECONDS = 120


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

    def take_step(self, batch: Batch, choice: "Candidates") -> float:
        import torch

        rate = self.schedule.rate_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens, targets = choice.pick(batch.targets[..., 1:].reshape(-1))
        loss = self.compiled(
            *to_tensors(batch, self.model.dtype),
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
        return float(loss.detach())

    def save(self, path: Path) -> None:
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
        surprise = torch.nn.functional.cross_entropy(logits, targets.clamp(min=0), reduction="none")
        weights = dpace_loss_decay(
            pos_idx=None,
            loss_mask=counted[None],
            block_size=block - 1,
            dpace_alpha=DPACE_ALPHA,
            elementwise_loss=surprise.detach()[None],
        )[0]
        return (surprise * weights).sum() / counted.sum().clamp(min=1)


@dataclass(slots=True)
class Candidates:
    """The tokens of a step's softmax: the frequent ones and a sample of the rest."""

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
        """Return a step's tokens, and where among them each target is; -1 stays -1."""
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
    report: Callable[[int, float], None],
    judge: Callable[[int, float], None],
) -> None:
    """Train from the checkpoint if there is one; `judge` is called as the schedule says.

    `report` gets every step with its loss, `judge` a step and the seconds since the start.
    """
    trainer = Trainer(model, schedule)
    if checkpoint.exists():
        trainer.load(checkpoint)
    generator = np.random.default_rng([schedule.seed, trainer.step])
    choice = Candidates.count(samples, model.lm_head.weight.shape[0], generator)
    batches = draw_batches(samples, states, geometry, generator)
    started = saved = time.monotonic()
    while trainer.step < schedule.steps:
        loss = trainer.take_step(next(batches), choice)
        if not math.isfinite(loss):
            raise InvalidInputError(
                f"the loss is {loss} at step {trainer.step}",
                hint=f"train in another --run with a lower --learning-rate than "
                f"{schedule.learning_rate:g}",
            )
        report(trainer.step, loss)
        if trainer.step % schedule.judge_every == 0:
            judge(trainer.step, time.monotonic() - started)
        if time.monotonic() - saved > CHECKPOINT_EVERY_SECONDS or trainer.step == schedule.steps:
            trainer.save(checkpoint)
            saved = time.monotonic()
