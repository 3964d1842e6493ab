"""A run does the stages that are not done yet, and only those."""

from pathlib import Path

import pytest

from slipstream.training import pipeline
from slipstream.training.pipeline import Stage, list_stages, require_unused
from slipstream.training.responses import Response
from slipstream.training.run import STAGES, Figures, StageName, TrainRun
from slipstream.training.workspace import Workspace
from tests.unit.training.pieces import RUN, open_workspace, refusal

RESPONSE = Response(id="a", prompt_ids=(1, 2), response_ids=(5, 6), finish_reason="stop")


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def test_both_kinds_of_machine_do_the_same_stages_in_the_same_order() -> None:
    on_gpu, on_cpu = list_stages(on_gpu=True), list_stages(on_gpu=False)
    assert tuple(on_gpu) == tuple(on_cpu) == STAGES
    own = [name for name in STAGES if on_gpu[name] is not on_cpu[name]]
    assert own == ["states", "training"]


def test_a_run_goes_on_after_the_last_stage_that_is_whole(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def stand_in(name: StageName) -> Stage:
        def stage(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
            if name == "training" and "training" not in done:
                done.append(name)
                raise KeyboardInterrupt
            done.append(name)
            return run, {"number": len(done)}

        return stage

    stages = {name: stand_in(name) for name in STAGES}
    monkeypatch.setattr(pipeline, "list_stages", lambda *, on_gpu: stages)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run_pipeline(RUN, space)
    assert done == ["prompts", "responses", "states", "training"]
    run = pipeline.run_pipeline(RUN, space)
    assert done[4:] == ["training", "acceptance", "export"]
    assert tuple(stage.name for stage in run.stages) == STAGES
    assert run.stages[2].figures == {"number": 3}
    assert space.folder.read() == run


@pytest.mark.parametrize(("token", "taken"), [(3, True), (None, True), (2, False), (5, False)])
def test_a_mask_that_stands_in_a_text_is_refused(token: int | None, taken: bool) -> None:
    error = refusal(require_unused, token, [RESPONSE])
    assert (error is None) is taken
    assert error is None or "--mask-token-id" in error.hint
