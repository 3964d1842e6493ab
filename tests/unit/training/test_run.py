"""A run is its folder: taken up again with the same settings, refused with others."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.training.run import STAGES, Judged, TrainFolder, TrainRun, name_run
from tests.unit.training.pieces import DONE, RUN, SERVED, SETTINGS, change


@pytest.fixture
def folder(tmp_path: Path) -> TrainFolder:
    return TrainFolder(tmp_path / "runs" / "one")


def test_a_run_loads_back_from_its_json_identically() -> None:
    assert TrainRun.model_validate_json(DONE.to_json()) == DONE


def test_a_new_run_is_begun_and_written_down(folder: TrainFolder) -> None:
    assert folder.read() is None
    assert folder.begin(RUN) == RUN
    assert folder.read() == RUN


def test_a_run_is_taken_up_again_with_the_same_settings(folder: TrainFolder) -> None:
    folder.write(DONE)
    later = RUN.model_copy(update={"command": "slipstream train again", "versions": {}})
    assert folder.begin(later) == DONE
    assert folder.read() == DONE


def test_a_run_with_other_settings_is_refused_with_every_difference(folder: TrainFolder) -> None:
    folder.write(DONE)
    other = change(steps=200, learning_rate=1e-4, block_size=8, max_tokens=128, thinking=False)
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN.model_copy(update={"settings": other}))
    assert caught.value.message == f"{folder.path} holds a run with other settings"
    assert caught.value.details == (
        "design.block_size: 4 then, 8 now",
        "schedule.steps: 100 then, 200 now",
        "schedule.learning_rate: 0.001 then, 0.0001 now",
        "max_tokens: 384 then, 128 now",
        "thinking: None then, False now",
    )
    assert caught.value.hint == "name another folder with --run"
    assert folder.read() == DONE


def test_other_prompts_under_the_same_names_are_other_settings(folder: TrainFolder) -> None:
    folder.write(DONE)
    fresh = RUN.model_copy(update={"settings": change(prompts_sha256="f00d" * 16)})
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(fresh)
    assert caught.value.details == (f"prompts_sha256: {'c0de' * 16} then, {'f00d' * 16} now",)


def test_a_file_where_the_folder_should_be_is_refused_and_kept(folder: TrainFolder) -> None:
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("notes")
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN)
    assert caught.value.message == f"{folder.path} is no folder"
    assert caught.value.hint == "name another folder with --run"
    assert folder.path.read_text() == "notes"


def test_an_empty_folder_is_begun_in(folder: TrainFolder) -> None:
    folder.path.mkdir(parents=True)
    assert folder.begin(RUN) == RUN
    assert folder.read() == RUN


def test_a_record_that_cannot_be_read_is_refused(folder: TrainFolder) -> None:
    folder.path.mkdir(parents=True)
    folder.record.write_text('{"command": "slipstream train"}')
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN)
    assert caught.value.message == f"{folder.record} is not a TrainRun that this version reads"
    assert caught.value.details == (
        "settings: Field required",
        "decisions: Field required",
        "versions: Field required",
    )
    assert caught.value.hint == f"remove {folder.path}, and train again"


def test_every_file_of_a_run_lies_in_its_folder_under_its_own_name(folder: TrainFolder) -> None:
    names = ("record", "prompts", "responses", "states", "checkpoint", "drafter", "engine_log")
    files = [getattr(folder, name) for name in names]
    assert {file.parent for file in files} == {folder.path}
    assert len(set(files)) == len(names)


def test_a_stage_is_found_once_it_is_done() -> None:
    assert [name for name in STAGES if DONE.find(name) is not None] == [
        "prompts",
        "responses",
        "training",
        "acceptance",
    ]
    assert DONE.find("training") == DONE.stages[2]
    assert RUN.find("training") is None


def test_a_run_is_named_after_its_target_and_its_settings() -> None:
    name = name_run(change(target="models/SmolLM2-135M-Instruct"))
    stem, _, digest = name.rpartition("-")
    assert stem == "SmolLM2-135M-Instruct"
    assert len(digest) == 8
    assert name == name_run(change(target="models/SmolLM2-135M-Instruct"))


@given(
    some.fixed_dictionaries(
        {},
        optional={
            "steps": some.integers(101, 9999),
            "seed": some.integers(1, 99),
            "layers": some.integers(4, 9),
            "max_tokens": some.integers(1, 383),
            "thinking": some.booleans(),
            "prompts": some.just(("code.jsonl",)),
            "prompts_sha256": some.just("f00d" * 16),
            "from_drafter": some.just("drafter"),
        },
    )
)
def test_runs_have_one_name_only_if_they_have_the_same_settings(
    changes: dict[str, Any],
) -> None:
    assert (name_run(change(**changes)) == name_run(SETTINGS)) is (not changes)


def test_positions_are_those_that_were_served_if_any_were() -> None:
    walked = DONE.judged["prose"].walked
    assert walked is not None
    assert Judged(prompts=1, walked=walked, served=SERVED).by_position == SERVED.by_position
    assert Judged(prompts=1, walked=walked).by_position == walked.by_position
    assert Judged(prompts=1).by_position == ()
