"""What is learnt of a real engine's steps, counted from the first one."""

from statistics import median

import numpy as np
import pytest

from slipstream.steering.state import KINDS
from slipstream.vllm_plugin.steering.step_costs import StepCosts, StepWork
from slipstream.vllm_plugin.steering.survival import Survival
from tests.unit.vllm_plugin.steering.recorded_engine import (
    RecordedEngine,
    Step,
    read_recordings,
    read_steps,
)

LONGEST = 7
KIND_NAMES = {"code": "code", "math": "other", "prose": "prose", "chat": "prose"}


def describe(step: Step) -> StepWork:
    generating = step.sequences - step.reading
    return StepWork(generating, step.prompt, step.verified, step.width, step.sequences)


def test_one_line_foresees_the_steps_of_every_batch() -> None:
    errors: dict[int, list[float]] = {}
    for steps in read_recordings():
        costs = StepCosts()
        for step in steps:
            if costs.steps >= 30:
                error = costs.expect(describe(step)) / step.cpu - 1
                errors.setdefault(step.clients, []).append(error)
            costs.observe(describe(step), step.cpu)
    assert set(errors) == {1, 2, 4, 8, 16, 32}
    for own in errors.values():
        assert len(own) >= 100
        assert median(map(abs, own)) < 0.12
        assert abs(median(own)) < 0.06


def test_the_drafters_probabilities_become_chances() -> None:
    survival = Survival(LONGEST)
    said, seen = np.zeros(LONGEST), np.zeros(LONGEST)
    drafts = [draft for step in read_steps() for draft in step.drafts]
    for number, draft in enumerate(drafts):
        kind = KINDS.index(KIND_NAMES[draft.kind])
        chances, bins = survival.calibrate([kind], [1.0], np.array([draft.chances]))
        if number > len(drafts) / 2:
            width = len(draft.chances)
            said[:width] += chances[0]
            seen[:width] += np.arange(width) < draft.right
        counts = np.array([draft.verified]), np.array([draft.accepted])
        survival.learn(np.array([kind]), bins, *counts)
        if number % 50 == 0:
            survival.settle()
    assert said.sum() == pytest.approx(seen.sum(), rel=0.08)
    assert said[:3].tolist() == pytest.approx(seen[:3].tolist(), rel=0.12)


def test_the_replayed_engine_takes_what_the_recorded_one_took() -> None:
    engine = RecordedEngine()
    for clients in (1, 2, 4, 8, 16, 32):
        steps = [step for step in read_steps() if step.sequences == clients and not step.reading]
        ratios = [
            engine.time(step.sequences, verified=step.verified, width=step.width) / step.cpu
            for step in steps
        ]
        assert median(ratios) == pytest.approx(1, abs=0.1)
