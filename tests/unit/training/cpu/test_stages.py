"""Hidden states have room before they are begun; a drafter is evaluated while it is trained."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipstream.errors import InvalidInputError
from slipstream.training.cpu import stages
from slipstream.training.cpu.stages import require_room, train_drafter
from slipstream.training.run import CurvePoint, TrainRun
from slipstream.training.workspace import Workspace
from tests.unit.training.pieces import RUN, TellingStates, make_samples, open_workspace, refusal


def test_states_that_do_not_fit_the_disk_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=21 << 30))
    space = open_workspace(tmp_path)
    assert refusal(require_room, space, 20 << 30) is None
    with pytest.raises(InvalidInputError, match=r"20\.0 GiB, and 21\.0 GiB are free") as caught:
        require_room(space, (20 << 30) + 1)
    assert "--run" in caught.value.hint


class Training:
    """The stage without a model: the steps to take and to evaluate are given."""

    def __init__(self, space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: Sequence[int] = ()
        self.built: list[str] = []
        self.evened: list[Any] = []
        self.told: list[str] = []
        self.space = replace(space, report=self.told.append)
        self.fits = True
        samples = make_samples([(2, 9), (3, 4)])
        material = SimpleNamespace(
            training=samples, states=TellingStates(samples), geometry="geometry"
        )
        # A walk takes the one right token, and is past the second anchor then.
        rights = {"code": [np.array([[True, False], [False, False]])]}
        for name, stand_in in {
            "read_material": lambda *_: material,
            "measure_scale": lambda *_: "scale",
            "build_model": self.build,
            "start_from_target": lambda *_: self.fits,
            "convert_drafter": lambda *_: Path("converted"),
            "load_model": self.load,
            "even_out": lambda model, scale: self.evened.append((model, scale)),
            "evaluate_kinds": lambda *_: rights,
            "train": self.train,
            "save_model": self.save,
        }.items():
            monkeypatch.setattr(stages, name, stand_in)

    def build(self, target: Path, _: Any, dtype: str, **__: Any) -> Any:
        assert dtype == self.space.dtype
        self.built.append(f"new for {target}")
        return SimpleNamespace()

    def load(self, folder: Path, target: Path, dtype: str) -> Any:
        assert dtype == self.space.dtype
        self.built.append(f"{folder} for {target}")
        return SimpleNamespace()

    def train(self, *arguments: Any) -> None:
        report: Callable[[int, float], None]
        evaluate: Callable[[int, float], None]
        *_, report, evaluate = arguments
        for step in self.steps:
            report(step, 2.0)
            evaluate(step, float(step))

    def save(self, _: Any, folder: Path, *, verifier: str) -> None:
        assert (folder, verifier) == (self.space.folder.drafter, self.space.target_name)

    def run(self, run: TrainRun, *steps: int) -> TrainRun:
        self.steps = steps
        done, figures = train_drafter(run, self.space)
        self.start = figures.pop("start")
        assert figures == {"steps": run.settings.schedule.steps, "response_tokens": 13}
        return done


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(open_workspace(tmp_path), monkeypatch)


def test_every_judged_step_is_a_point_that_is_written_down_and_told(training: Training) -> None:
    done = training.run(RUN, 25, 50)
    assert [one.step for one in done.curve] == [25, 50]
    assert done.curve[1] == CurvePoint(
        step=50, seconds=50.0, loss=2.0, uniform={"code": 1.5}, walked={"code": 2.0}
    )
    assert training.space.folder.read() == done
    assert training.told == [
        f"training: step {step}, loss 2.000, held-out tokens per step: code 2.00"
        for step in (25, 50)
    ]


def test_a_step_that_was_judged_before_is_replaced_and_what_came_after_it_dropped(
    training: Training,
) -> None:
    """The checkpoint may be older than the record: training goes on from step 25 here."""
    old = CurvePoint(step=0, seconds=1.0, loss=9.0, uniform={"code": 1.0}, walked={"code": 1.0})
    curve = tuple(old.model_copy(update={"step": step}) for step in (25, 50, 75))
    before = RUN.model_copy(update={"curve": curve})
    for steps in ((50,), (50, 75, 100)):
        done = training.run(before, *steps)
        assert [(one.step, one.loss) for one in done.curve] == [
            (25, 9.0),
            *((at, 2.0) for at in steps),
        ]
        assert training.space.folder.read() == done
    # A run that was trained to its end keeps its curve.
    assert training.run(before).curve == before.curve


def test_a_warm_start_goes_on_from_its_drafter(training: Training, tmp_path: Path) -> None:
    training.run(RUN)
    assert (training.built, training.evened) == (["new for target"], [])
    assert training.start == "the target's last 3 layers"
    training.fits = False
    training.run(RUN)
    assert training.start == "random weights"
    training.space = replace(training.space, start_folder=tmp_path)
    training.run(RUN)
    assert training.start == "an earlier drafter"
    assert training.built[2:] == ["converted for target"]
    assert [scale for _, scale in training.evened] == ["scale"]
