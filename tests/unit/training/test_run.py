"""A run is its folder: taken up again with the same settings, refused with others."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.steering.drafts import Drafts
from slipstream.training.run import (
    Judged,
    Schedule,
    TrainFolder,
    TrainRun,
    name_run,
    tokens_per_step,
)
from tests.unit.training.pieces import DONE, RUN, SERVED, SETTINGS, change


@pytest.fixture
def folder(tmp_path: Path) -> TrainFolder:
    return TrainFolder(tmp_path / "runs" / "one")


def test_a_run_loads_back_from_its_json_identically() -> None:
    assert TrainRun.model_validate_json(DONE.to_json()) == DONE


def test_a_new_run_is_begun_and_written_down(folder: TrainFolder) -> None:
    assert folder.read() is None
    folder.path.mkdir(parents=True)
    assert folder.begin(RUN) == RUN
    assert folder.read() == RUN


def test_a_run_is_taken_up_again_with_the_same_settings(folder: TrainFolder) -> None:
    folder.write(DONE)
    later = RUN.model_copy(update={"command": "slipstream train again", "versions": {}})
    assert folder.begin(later) == DONE
    assert folder.read() == DONE


def test_a_run_with_other_settings_is_refused_with_every_difference(folder: TrainFolder) -> None:
    folder.write(DONE)
    changes: dict[str, Any] = {"steps": 200, "learning_rate": 1e-4, "block_size": 8}
    other = change(**changes, prompts_sha256="f00d", max_tokens=128, thinking=False)
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN.model_copy(update={"settings": other}))
    assert caught.value.details == (
        f"prompts_sha256: {'c0de' * 16} then, f00d now",
        "design.block_size: 4 then, 8 now",
        "schedule.steps: 100 then, 200 now",
        "schedule.learning_rate: 0.001 then, 0.0001 now",
        "max_tokens: 384 then, 128 now",
        "thinking: None then, False now",
    )
    assert folder.read() == DONE


def test_a_file_where_the_folder_should_be_is_refused_and_kept(folder: TrainFolder) -> None:
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("notes")
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN)
    assert "--run" in caught.value.hint
    assert folder.path.read_text() == "notes"


def test_a_record_that_cannot_be_read_is_refused(folder: TrainFolder) -> None:
    folder.path.mkdir(parents=True)
    folder.record.write_text('{"command": "slipstream train"}')
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN)
    assert [detail.split(":")[0] for detail in caught.value.details] == [
        "settings",
        "decisions",
        "versions",
    ]
    assert "--run" in caught.value.hint


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


def test_only_kinds_with_drafts_have_a_rate() -> None:
    assert tokens_per_step({"code": SERVED, "prose": Drafts()}) == {"code": 2.234}


def test_the_shares_that_0_1_0_kept_are_read_as_counts() -> None:
    old = {
        "prompts": 24,
        "walked": {"drafts": 500, "tokens_per_step": 1.5, "by_position": [0.35, 0.1, 0.05]},
        "served": {
            **{"requests": 24, "tokens": 4800, "drafts": 2000, "accepted": 2468, "seconds": 61.0},
            **{"tokens_per_step": 2.234, "by_position": [0.7, 0.4, 0.134]},
        },
    }
    judged = Judged.model_validate(old)
    assert (judged.served, judged.walked) == (SERVED, DONE.judged["prose"].walked)


SCHEDULES = some.builds(
    Schedule,
    steps=some.integers(1, 5000),
    learning_rate=some.floats(1e-6, 1),
    warm_up=some.floats(0, 0.5),
)


def test_the_rate_rises_in_equal_steps_to_the_learning_rate() -> None:
    schedule = Schedule(steps=100, learning_rate=1e-3, warm_up=0.04)
    rates = [schedule.rate_at(step) for step in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_half_way_down_the_rate_is_half_way_to_a_twentieth() -> None:
    schedule = Schedule(steps=110, learning_rate=1e-3, warm_up=10 / 110)
    assert schedule.rate_at(60) == pytest.approx((1 + 0.05) / 2 * 1e-3)
    assert schedule.rate_at(110) == pytest.approx(0.05e-3)


@given(SCHEDULES)
def test_the_rate_is_never_zero_and_never_more_than_the_learning_rate(schedule: Schedule) -> None:
    for step in {0, 1, schedule.steps // 50, schedule.steps // 2, schedule.steps - 1}:
        assert 0 < schedule.rate_at(step) <= schedule.learning_rate * (1 + 1e-9)


@given(SCHEDULES, some.data())
def test_after_the_rise_the_rate_only_falls_and_ends_above_a_twentieth(
    schedule: Schedule, data: some.DataObject
) -> None:
    rise = max(1, round(schedule.steps * schedule.warm_up))
    first = data.draw(some.integers(rise, max(rise, schedule.steps - 1)))
    second = data.draw(some.integers(first, max(rise, schedule.steps - 1)))
    floor = schedule.learning_rate / 20
    assert schedule.rate_at(first) >= schedule.rate_at(second) >= floor * (1 - 1e-9)


def test_a_single_step_is_taken_at_the_full_rate() -> None:
    assert Schedule(steps=1, learning_rate=0.5).rate_at(0) == 0.5
