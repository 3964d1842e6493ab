"""A run is its folder: taken up again with the same settings, refused with others."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.steering.drafts import Drafts
from slipstream.training.run import (
    Evaluation,
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


def test_a_run_is_begun_written_down_and_taken_up_again(folder: TrainFolder) -> None:
    assert folder.read() is None
    assert folder.begin(RUN) == folder.read() == RUN
    folder.write(DONE)
    later = RUN.model_copy(update={"command": "slipstream train again", "versions": {}})
    assert folder.begin(later) == folder.read() == DONE


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


def test_a_file_in_the_folders_place_and_a_record_of_another_form_are_refused(
    folder: TrainFolder,
) -> None:
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("notes")
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN)
    assert "--run" in caught.value.hint
    assert folder.path.read_text() == "notes"
    folder.path.unlink()
    folder.path.mkdir()
    folder.record.write_text('{"command": "slipstream train"}')
    with pytest.raises(InvalidInputError) as caught:
        folder.begin(RUN)
    missing = [detail.split(":")[0] for detail in caught.value.details]
    assert missing == ["settings", "decisions", "versions"]
    assert "--run" in caught.value.hint


def test_a_run_is_named_after_its_target_and_every_setting() -> None:
    name = name_run(change(target="models/SmolLM2-135M-Instruct"))
    assert name == name_run(change(target="models/SmolLM2-135M-Instruct"))
    stem, _, digest = name.rpartition("-")
    assert (stem, len(digest)) == ("SmolLM2-135M-Instruct", 8)
    changes: dict[str, Any] = {"steps": 101, "seed": 1, "layers": 4, "max_tokens": 1}
    changes |= {"thinking": False, "prompts": ("code.jsonl",), "prompts_sha256": "f00d"}
    changes |= {"from_drafter": "drafter"}
    names = {name_run(change(**{field: value})) for field, value in changes.items()}
    assert len(names | {name_run(SETTINGS)}) == len(changes) + 1


def test_positions_are_those_that_were_served_if_any_were() -> None:
    walked = DONE.evaluated["prose"].walked
    assert walked is not None
    assert Evaluation(prompts=1, walked=walked, served=SERVED).by_position == SERVED.by_position
    assert Evaluation(prompts=1, walked=walked).by_position == walked.by_position
    assert Evaluation(prompts=1).by_position == ()


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
    evaluated = Evaluation.model_validate(old)
    assert (evaluated.served, evaluated.walked) == (SERVED, DONE.evaluated["prose"].walked)


SCHEDULES = some.builds(
    Schedule,
    steps=some.integers(1, 5000),
    learning_rate=some.floats(1e-6, 1),
    warm_up=some.floats(0, 0.5),
)


def test_the_rate_rises_in_equal_steps_and_falls_to_a_twentieth() -> None:
    schedule = Schedule(steps=100, learning_rate=1e-3, warm_up=0.04)
    rates = [schedule.rate_at(step) for step in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
    schedule = Schedule(steps=110, learning_rate=1e-3, warm_up=10 / 110)
    assert schedule.rate_at(60) == pytest.approx((1 + 0.05) / 2 * 1e-3)
    assert schedule.rate_at(110) == pytest.approx(0.05e-3)
    assert Schedule(steps=1, learning_rate=0.5).rate_at(0) == 0.5


@given(SCHEDULES, some.data())
def test_the_rate_is_never_zero_never_too_high_and_only_falls_after_the_rise(
    schedule: Schedule, data: some.DataObject
) -> None:
    rise = max(1, round(schedule.steps * schedule.warm_up))
    assert 0 < schedule.rate_at(0) <= schedule.learning_rate * (1 + 1e-9)
    first = data.draw(some.integers(rise, max(rise, schedule.steps - 1)))
    second = data.draw(some.integers(first, max(rise, schedule.steps - 1)))
    floor, most = schedule.learning_rate / 20 * (1 - 1e-9), schedule.learning_rate * (1 + 1e-9)
    assert most >= schedule.rate_at(first) >= schedule.rate_at(second) >= floor
