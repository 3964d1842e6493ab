"""A candidate of one round: states of the chosen text, a probe of the ceiling, training, its gate.

Every part is written down when it is whole and taken up again after it: a process that is killed
loses what it did since its last checkpoint. Whether an answer is the target's own shows in the
states' pass: one that the target finds unlikely is dropped, however it came among the text.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slipstream.atomic_files import make_folder_once, write_atomically
from slipstream.checkpoints.reading import read_checkpoint
from slipstream.learning.deciding import PROBE_STEPS, RoundText
from slipstream.learning.generation import show_rate
from slipstream.learning.kept_text import KeptAnswer, encode, read_kept
from slipstream.records import Record, read_record
from slipstream.steering.drafts import Drafts
from slipstream.training.cpu.acceptance import evaluate_sample, walk
from slipstream.training.cpu.batches import Geometry, StateFile, TrainSample, extract, open_states
from slipstream.training.cpu.models import even_out, load_model, measure_scale, save_model
from slipstream.training.cpu.trainer import train
from slipstream.training.run import Schedule
from slipstream.training.warm_start import convert_drafter

PROBE_ANSWERS = 200
CHECKPOINT_EVERY_SECONDS = 30.0
LEAST_GAIN = 0.03
MOST_LOSS, LEAST_SHARE = 0.05, 0.05
# Of an answer's tokens, among the target's eight likeliest there; of sampled text it is more.
LEAST_OWN_SHARE = 0.7
# Evaluations in a row without a gain, before training ends.
PATIENCE = 2
TEXT, STATES, CHECKPOINT = "text", "states.bin", "checkpoint.pt"
# As `read_kept` finds it.
FILE = "round-000000000000.tokens"

Walked = dict[str, Drafts]


class Point(Record):
    """Held-out acceptance by kind at one step."""

    step: int
    walked: Walked


class RoundState(Record):
    """A round under way; what is None was not reached yet."""

    schema_version: Literal[2] = 2
    # Of those that came to their end, this will be so many.
    round: int
    number: int
    parent: int
    drafter: Path
    target: Path
    target_name: str
    dtype: str
    data_sha256: str
    until: int
    held_out: int
    answers: int
    new_tokens: int
    replayed_tokens: int
    shares: dict[str, float]
    schedule: Schedule
    before: Walked | None = None
    probed: Walked | None = None
    dropped: int | None = None
    curve: tuple[Point, ...] = ()
    is_trained: bool = False
    seconds: float = 0.0

    @property
    def best(self) -> Point | None:
        """The evaluation with the largest gain, None if none has any."""
        best = max(self.curve, key=self._find_gain, default=None)
        return best if best is not None and self._find_gain(best) > 0 else None

    def _find_gain(self, point: Point) -> float:
        return find_gain(self.before or {}, point.walked, self.shares)


def find_gain(before: Mapping[str, Drafts], after: Mapping[str, Drafts], shares: Any) -> float:
    """Return by what share tokens per step rose, each kind weighed by its share of the traffic."""
    ratios = _find_ratios(before, after)
    weights = {kind: shares.get(kind, 0.0) for kind in ratios}
    if not sum(weights.values()):
        weights = dict.fromkeys(ratios, 1.0)
    total = sum(weights.values())
    return (
        exp(sum(weights[kind] * log(ratios[kind]) for kind in ratios) / total) - 1 if total else 0
    )


def find_objection(
    before: Mapping[str, Drafts], after: Mapping[str, Drafts], shares: Mapping[str, float]
) -> str | None:
    """Return why a candidate is not offered, None if it is."""
    for kind, ratio in sorted(_find_ratios(before, after).items()):
        if ratio < 1 - MOST_LOSS and shares.get(kind, 0.0) > LEAST_SHARE:
            return (
                f"it loses {1 - ratio:.0%} of the tokens per step of {kind}, which has "
                f"{shares[kind]:.0%} of the traffic"
            )
    gain = find_gain(before, after, shares)
    return None if gain >= LEAST_GAIN else f"it gains {gain:.1%}, less than {LEAST_GAIN:.0%}"


def _find_ratios(before: Mapping[str, Drafts], after: Mapping[str, Drafts]) -> dict[str, float]:
    rates = {kind: (before[kind].tokens_per_step, after[kind].tokens_per_step) for kind in after}
    return {kind: new / old for kind, (old, new) in rates.items() if old and new}


def begin_work(folder: Path, work: RoundState, material: RoundText) -> None:
    """Put a round's folder into place, with a copy of its text in the order of its use."""

    def build(partial: Path) -> None:
        partial.chmod(0o700)
        answers = (*material.held_out, *material.training)
        records = [
            encode(one.kind, one.at, one.prompt.tolist(), one.answer.tolist()) for one in answers
        ]
        (partial / TEXT).mkdir()
        write_atomically(partial / TEXT / FILE, b"".join(filter(None, records)), mode=0o600)
        write_atomically(partial / "work.json", work.to_json().encode(), mode=0o600)

    shutil.rmtree(folder, ignore_errors=True)
    make_folder_once(folder, build)


class Round:
    """The work in a folder, from wherever the last process left it."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder, self._report = folder, report
        self.work = read_record(folder / "work.json", RoundState, hint=f"remove {folder}")
        self._cpu = time.process_time()

    def follow(self, report: Callable[[str], None]) -> None:
        """Report to another place from now on."""
        self._report = report

    def probe(self) -> float | None:
        """Train for some steps on a sample, and return the gain on what is held out.

        None says that what is kept is not the target's own text.
        """
        work = self.work
        if work.before is None or work.probed is None:
            count = work.held_out + PROBE_ANSWERS
            self._report("reading kept text with the target")
            states, held_out, training = self._read(count)
            if not (held_out and training):
                return None
            model = self._load(work.drafter, states, training)
            before = self._evaluate(model, held_out, states)
            schedule = work.schedule.model_copy(
                update={"steps": min(PROBE_STEPS, work.schedule.steps), "evaluate_every": 1 << 30}
            )
            self._report(f"a probe of {schedule.steps} steps")
            checkpoint = self._folder / f"probe-{CHECKPOINT}"
            self._train(model, training, states, schedule, checkpoint, lambda *_: False)
            self.save(before=before, probed=self._evaluate(model, held_out, states))
        return find_gain(self.work.before or {}, self.work.probed or {}, self.work.shares)

    def train(self) -> None:
        """Train on all of the text, and keep the drafter of the best evaluation."""
        if self.work.is_trained:
            return
        states, held_out, training = self._read(self.work.answers)
        model = self._load(self.work.drafter, states, training)

        def evaluate(step: int, _: float) -> bool:
            walked = self._evaluate(model, held_out, states)
            # A process that went on may come by a step that was evaluated before.
            earlier = tuple(one for one in self.work.curve if one.step < step)
            curve = (*earlier, Point(step=step, walked=walked))
            best = self.work.model_copy(update={"curve": curve}).best
            if best is not None and best.step == step:
                self._save_model(model, step)
            self.save(curve=curve)
            shown = ", ".join(f"{kind} {show_rate(one)}" for kind, one in walked.items())
            steps = self.work.schedule.steps
            self._report(f"step {step} of {steps}, tokens per step on held-out text: {shown}")
            since = step - (best.step if best else 0)
            return since >= PATIENCE * self.work.schedule.evaluate_every

        checkpoint = self._folder / CHECKPOINT
        self._train(model, training, states, self.work.schedule, checkpoint, evaluate)
        self.save(is_trained=True)

    @property
    def drafter(self) -> Path:
        """The folder of the best drafter so far."""
        best = self.work.best
        assert best is not None
        return self._name(best.step)

    def save(self, **changes: Any) -> None:
        now = time.process_time()
        changes["seconds"] = self.work.seconds + now - self._cpu
        self._cpu = now
        self.work = self.work.model_copy(update=changes)
        write_atomically(self._folder / "work.json", self.work.to_json().encode(), mode=0o600)

    def _name(self, step: int) -> Path:
        return self._folder / f"best-{step}"

    @cached_property
    def _answers(self) -> list[KeptAnswer]:
        return list(read_kept(self._folder / TEXT))

    @cached_property
    def _samples(self) -> list[TrainSample]:
        return [
            TrainSample(
                tokens=np.concatenate([one.prompt, one.answer]).astype(np.int64),
                response_start=len(one.prompt),
                number=number,
            )
            for number, one in enumerate(self._answers)
        ]

    @cached_property
    def _shape(self) -> tuple[tuple[int, ...], int, Geometry]:
        """Return the layers whose states are read, their width together, and the batches' shape."""
        drafter = read_checkpoint(str(self.work.drafter), tokenizer=False)
        draft, schedule = drafter.draft, self.work.schedule
        assert draft is not None
        layers = tuple(layer + 1 for layer in draft.layer_outputs or ())
        target = read_checkpoint(str(self.work.target), tokenizer=False)
        geometry = Geometry(
            rows=schedule.rows,
            context=schedule.context,
            anchors=schedule.anchors,
            block=draft.block_size or 0,
            mask_token=draft.mask_token_id,
        )
        return layers, len(layers) * (target.hidden_size or 0), geometry

    def _read(
        self, count: int
    ) -> tuple[StateFile, dict[str, list[TrainSample]], list[TrainSample]]:
        """Return the states of the first samples, and both sides of those that are the target's."""
        layers, width, _ = self._shape
        samples, path = self._samples[:count], self._folder / STATES
        extract(self.work.target, samples, layers, path, lambda *_: None, self.work.dtype)
        states = open_states(path, samples, width)
        own = [one for one in samples if find_own_share(one, states) >= LEAST_OWN_SHARE]
        if self.work.dropped != (dropped := len(samples) - len(own)):
            self.save(dropped=dropped)
        held_out: dict[str, list[TrainSample]] = {}
        for one in own:
            if one.number < self.work.held_out:
                held_out.setdefault(self._answers[one.number].kind, []).append(one)
        return states, held_out, [one for one in own if one.number >= self.work.held_out]

    def _load(self, drafter: Path, states: StateFile, training: Sequence[TrainSample]) -> Any:
        converted = convert_drafter(drafter, self.work.target, self._folder / "from")
        model = load_model(converted, self.work.target, self.work.dtype)
        even_out(model, measure_scale(states, training))
        return model

    def _evaluate(
        self, model: Any, held_out: Mapping[str, Sequence[TrainSample]], states: StateFile
    ) -> Walked:
        geometry = self._shape[2]
        return {
            kind: walk([evaluate_sample(model, one, states, geometry) for one in samples])
            for kind, samples in held_out.items()
        }

    def _train(
        self,
        model: Any,
        training: Sequence[TrainSample],
        states: StateFile,
        schedule: Schedule,
        checkpoint: Path,
        evaluate: Callable[[int, float], bool],
    ) -> None:
        import torch

        places = (model, training, states, self._shape[2], schedule, checkpoint)
        train(*places, lambda *_: None, evaluate, save_every_seconds=CHECKPOINT_EVERY_SECONDS)
        for parameter in model.parameters():  # In float32 now, to be saved; here it is evaluated.
            parameter.data = parameter.data.to(getattr(torch, self.work.dtype))

    def _save_model(self, model: Any, step: int) -> None:
        """Save what was evaluated; the model goes on with the states evened as before."""
        scale = model.feature_scale
        shutil.rmtree(self._name(step), ignore_errors=True)
        make_folder_once(
            self._name(step),
            lambda partial: save_model(model, partial, verifier=self.work.target_name),
        )
        even_out(model, scale)


def find_own_share(sample: TrainSample, states: StateFile) -> float:
    """Return how many tokens of an answer are among the target's likeliest at their place."""
    choices, _ = states.read_choices(sample.number)
    places = np.arange(max(1, sample.response_start), len(sample.tokens))
    return float((choices[places - 1] == sample.tokens[places, None]).any(-1).mean())


def read_work(folder: Path) -> RoundState | None:
    """Return the round under way, if there is one."""
    record = folder / "work.json"
    return read_record(record, RoundState, hint=f"remove {folder}") if record.exists() else None
