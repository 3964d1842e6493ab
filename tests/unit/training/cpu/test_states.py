"""States lie one sample after the other, and an interrupted file is gone on with."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.training.cpu import states
from slipstream.training.cpu.batches import TrainSample
from slipstream.training.cpu.states import (
    TOKENS_AT_ONCE,
    extract,
    group_by_length,
    open_states,
)
from tests.unit.training.pieces import TellingStates, make_samples, pretend_installed

LENGTHS = some.lists(some.integers(2, 3000), min_size=1, max_size=40)


def make(lengths: Sequence[int]) -> list[TrainSample]:
    return make_samples([(1, length - 1) for length in lengths])


def test_what_was_written_is_read_back_sample_by_sample(tmp_path: Path) -> None:
    samples = make([3, 5, 2])
    telling = TellingStates(samples)
    path = tmp_path / "states.bin"
    path.write_bytes(b"".join(telling.read(sample.number).tobytes() for sample in samples))
    opened = open_states(path, samples, width=2)
    for sample in samples:
        assert np.array_equal(opened.read(sample.number), telling.read(sample.number))
    assert opened.rows.shape == (10, 2)


def test_a_file_that_is_too_short_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "states.bin").write_bytes(bytes(4 * 9))
    with pytest.raises(ValueError, match="greater than file size"):
        open_states(tmp_path / "states.bin", make([3, 5, 2]), width=2)


@given(LENGTHS)
def test_samples_are_grouped_by_length_up_to_what_is_computed_at_once(lengths: list[int]) -> None:
    groups = [[len(sample.tokens) for sample in group] for group in group_by_length(make(lengths))]
    assert [length for group in groups for length in group] == sorted(lengths)
    for group in groups:
        assert len(group) * max(group) <= TOKENS_AT_ONCE or len(group) == 1


class Extraction:
    """The stage with a made-up target, and a record of what it had to compute."""

    def __init__(self, path: Path, samples: list[TrainSample]) -> None:
        self.path, self.samples = path, samples
        self.windows: list[list[int]] = []
        self.reports: list[tuple[int, int]] = []

    def compute(
        self, _: Any, window: Sequence[TrainSample], layer_ids: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[np.uint16]]]:
        assert layer_ids == (2, 5)
        self.windows.append([sample.number for sample in window])
        telling = TellingStates(self.samples)
        for sample in reversed(window):
            yield sample.number, telling.read(sample.number)

    def run(self) -> None:
        extract(
            Path("target"),
            self.samples,
            (2, 5),
            self.path,
            lambda *done: self.reports.append(done),
        )

    def whole(self) -> bytes:
        telling = TellingStates(self.samples)
        return b"".join(telling.read(sample.number).tobytes() for sample in self.samples)


@pytest.fixture
def extraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extraction:
    pretend_installed(monkeypatch)
    text = SimpleNamespace(hidden_size=1)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    loader = SimpleNamespace(from_pretrained=lambda *_, **__: SimpleNamespace(eval=lambda: model))
    monkeypatch.setattr(sys.modules["transformers"], "AutoModelForCausalLM", loader, raising=False)
    logging = SimpleNamespace(disable_progress_bar=lambda: None)
    monkeypatch.setitem(sys.modules, "transformers.utils", SimpleNamespace(logging=logging))
    monkeypatch.setattr("torch.bfloat16", "bfloat16", raising=False)
    made = Extraction(tmp_path / "states.bin", make([3, 5, 2, 4, 6]))
    monkeypatch.setattr(states, "_compute", made.compute)
    monkeypatch.setattr(states, "SAMPLES_IN_A_WINDOW", 2)
    return made


def test_states_are_written_in_the_order_of_the_samples(extraction: Extraction) -> None:
    extraction.run()
    assert extraction.path.read_bytes() == extraction.whole()
    assert extraction.windows == [[0, 1], [2, 3], [4]]
    assert extraction.reports == [(8, 20), (14, 20), (20, 20)]


@pytest.mark.parametrize(
    ("kept_bytes", "first"),
    [
        (0, 0),
        (4 * 3 - 1, 0),  # a row short of the first sample
        (4 * 3, 1),
        (4 * 8 + 1, 2),  # in the midst of a row
        (4 * 9, 2),
        (4 * 10, 3),
        (4 * 20, 5),  # a finished file is left as it is
    ],
)
def test_an_interrupted_file_goes_on_after_its_last_whole_sample(
    extraction: Extraction, kept_bytes: int, first: int
) -> None:
    # What stands beyond the last whole sample is thrown away: here it is garbage.
    whole = extraction.whole()
    good = sum(len(sample.tokens) for sample in extraction.samples[:first]) * 4
    extraction.path.write_bytes(whole[:good] + b"\xff" * (kept_bytes - good))
    extraction.run()
    assert extraction.path.read_bytes() == whole
    assert [number for window in extraction.windows for number in window] == list(range(first, 5))
