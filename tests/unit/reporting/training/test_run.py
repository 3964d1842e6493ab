"""What `slipstream train` shows before a run and after it, word for word."""

from pathlib import Path

from slipstream.hardware import load_host
from slipstream.reporting.report import render_text
from slipstream.reporting.training.run import describe_estimate, describe_run
from slipstream.training.estimate import TrainEstimate, estimate_run
from slipstream.training.run import TrainFolder
from tests.snapshots import read_snapshot
from tests.unit.training.pieces import DONE, RUN, converse
from tests.unit.training.test_estimate import SMALL

FOLDER = TrainFolder(Path("runs/one"))


def expect(machine: str) -> TrainEstimate:
    prompts = [converse("x" * 400, kind=kind) for kind in ("code", "prose") for _ in range(2000)]
    made = estimate_run(RUN, SMALL, prompts, load_host(machine), FOLDER.path)
    return made.model_copy(update={"free_bytes": 90 << 30})


def test_an_estimate_is_shown_as_reviewed() -> None:
    report = describe_estimate(expect("cpu-server"))
    assert report.figure == "60 min"
    shown = render_text(report) + "\n"
    assert shown == read_snapshot("train-estimate.txt", shown)


def test_a_time_that_is_not_known_is_called_unknown() -> None:
    report = describe_estimate(expect("h100"))
    assert report.figure == "unknown"
    stages = report.sections[0].table
    assert stages is not None
    assert [row[0] for row in stages.rows if row[-1] == "unknown"] == [
        "responses",
        "states",
        "training",
        "acceptance",
    ]


def test_a_run_is_shown_as_reviewed() -> None:
    report = describe_run(DONE, FOLDER)
    assert (report.figure, describe_run(RUN, FOLDER).figure) == ("2.23", "unknown")
    shown = render_text(report) + "\n"
    assert shown == read_snapshot("train-run.txt", shown)
