"""Generations, how far a pair has come, and who may write that down."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.learning.generation import Generation, GenerationVerdict, LearningFolder, Progress
from tests.unit.learning.stub_job import walk

AT = datetime(2026, 11, 18, tzinfo=UTC)


def make(home: LearningFolder, number: int, verdict: GenerationVerdict = "candidate") -> Generation:
    return Generation(
        number=number,
        parent=number - 1,
        drafter=home.find_drafter(number),
        made_at=AT,
        before=walk({"code": 2.0}),
        after=walk({"code": 2.4}),
        shares={"code": 0.9},
        verdict=verdict,
    )


@pytest.fixture
def home(tmp_path: Path) -> LearningFolder:
    return LearningFolder(tmp_path / "pair")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_generation_is_there_with_its_drafter_and_its_card_or_not_at_all(
    home: LearningFolder, weights: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        home.add(make(home, 1), weights / "missing")
    assert home.list_generations() == []
    home.add(made := make(home, 1), weights)
    home.add(make(home, 1, "kept"))  # After a kill, once more.
    assert home.list_generations() == [made]
    assert home.find_serving(home.find_drafter(1)) == made
    assert home.find_serving(weights) is None
    card = (home.find_drafter(1) / "README.md").read_text()
    assert "| code | 90% | 2.00 | 2.40 |" in card
    assert home.name_next() == 2


def test_what_was_taken_back_keeps_its_record_and_loses_its_weights(
    home: LearningFolder, weights: Path
) -> None:
    home.add(make(home, 1), weights)
    home.set_verdict(1, "on trial", "")
    assert home.find_drafter(1).is_dir()
    home.set_verdict(1, "rolled back", "worse")
    assert (home.find(1).verdict, home.find(1).because) == ("rolled back", "worse")
    assert not home.find_drafter(1).exists()
    with pytest.raises(InvalidInputError, match="no generation 2"):
        home.find(2)


def test_only_one_run_of_a_pair_learns(home: LearningFolder) -> None:
    home.lock()
    with pytest.raises(InvalidInputError, match="another run"):
        LearningFolder(home.path).lock()
    assert home.path.stat().st_mode & 0o077 == 0


def test_three_failed_candidates_in_a_row_double_the_wait(home: LearningFolder) -> None:
    home.lock()
    progress = home.read_progress()
    waits = []
    for _ in range(6):
        progress = progress.fail("it loses").close_round("it loses", 7)
        waits.append(progress.wanted_tokens)
    assert waits == [20_000, 20_000, 40_000, 40_000, 40_000, 80_000]
    home.write_progress(progress)
    assert home.read_progress() == progress
    assert (progress.rounds, progress.failed, progress.learnt_until) == (6, 6, 7)


def test_the_wait_has_an_end() -> None:
    progress = Progress()
    for _ in range(40):
        progress = progress.wait_longer()
    assert progress.wanted_tokens == 50_000_000


def test_a_round_without_its_record_is_none(home: LearningFolder) -> None:
    home.work.mkdir(parents=True)
    (home.work / "work.json").write_text("{}")
    (home.work / "states.bin").write_bytes(b"1")
    home.end_work()
    assert not home.work.exists()
    home.end_work()
