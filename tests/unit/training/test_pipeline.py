"""A run does the stages that are not done yet, and only those."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.training import pipeline
from slipstream.training.pipeline import Stage, list_stages, require_unused
from slipstream.training.prompts import Conversation, read_conversations
from slipstream.training.responses import Response
from slipstream.training.run import STAGES, Figures, StageName, TrainRun
from slipstream.training.workspace import Workspace
from tests.unit.training.pieces import RUN, change, open_workspace, refusal

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


def test_a_prompt_longer_than_the_target_reads_is_left_out_and_counted(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM answers such a prompt with 400, which would end the run."""
    prompts = tmp_path / "digits.jsonl"
    prompts.write_text("".join(f'{{"prompt": "Add {number}"}}\n' for number in range(100)))
    limit = space.target.context or 0

    def count(_: Path, rows: Sequence[Conversation], __: bool | None) -> list[Conversation]:
        lengths = [limit - 1, limit - 2, *(20 for _ in rows[2:])]
        return [
            row.model_copy(update={"tokens": length})
            for row, length in zip(rows, lengths, strict=True)
        ]

    monkeypatch.setattr(pipeline, "count_tokens", count)
    run = RUN.model_copy(update={"settings": change(prompts=(str(prompts),))})
    _, figures = pipeline.list_stages(on_gpu=False)["prompts"](run, space)
    assert (figures["read"], figures["too_long"]) == (100, 1)
    kept = read_conversations(space.folder.prompts)
    assert len(kept) == 99
    assert max(row.tokens or 0 for row in kept) == limit - 2
