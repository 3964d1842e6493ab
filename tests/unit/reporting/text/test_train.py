"""What `slipstream train` shows before a run and after it, word for word."""

from pathlib import Path

from slipstream.reporting.text.train import render_estimate, render_run
from slipstream.training.estimate import TrainEstimate, estimate_stages
from slipstream.training.run import TrainFolder
from tests.snapshots import read_snapshot
from tests.unit.training.pieces import DONE, RUN, converse
from tests.unit.training.test_estimate import SMALL

GIB = 1 << 30
FOLDER = TrainFolder(Path("runs/one"))


def expect(*, on_cpu: bool) -> TrainEstimate:
    prompts = [converse("x" * 400, kind=kind) for kind in ("code", "prose") for _ in range(2000)]
    return TrainEstimate(
        settings=RUN.settings,
        decisions=RUN.decisions,
        folder=str(FOLDER.path),
        free_bytes=90 * GIB,
        stages=estimate_stages(RUN.settings, SMALL, prompts, on_cpu=on_cpu),
    )


def test_an_estimate_is_shown_as_reviewed() -> None:
    shown = render_estimate(expect(on_cpu=True)) + "\n"
    assert shown == read_snapshot("train-estimate.txt", shown)


def test_a_time_that_is_not_known_is_called_unknown() -> None:
    shown = render_estimate(expect(on_cpu=False))
    rows = {line.split()[0]: line for line in shown.splitlines()[1:7]}
    unknown = {name for name, line in rows.items() if line.endswith("unknown")}
    assert unknown == {"responses", "states", "training", "acceptance"}
    assert rows["prompts"].endswith("0 min")


def test_the_disk_of_all_stages_is_added_up() -> None:
    expected = expect(on_cpu=True)
    total = sum(stage.disk_bytes for stage in expected.stages) / GIB
    shown = render_estimate(expected)
    assert f"\n{total:.1f} GiB of disk in all, 90.0 GiB are free; kept in runs/one\n" in shown


def test_every_choice_is_shown_with_its_source_and_its_reason() -> None:
    lines = render_estimate(expect(on_cpu=True)).splitlines()
    assert [line.split(maxsplit=3) for line in lines[-3:]] == [
        ["SETTING", "VALUE", "SOURCE", "BECAUSE"],
        ["--layers", "3", "checkpoint", "the target is small"],
        ["--block-size", "4", "user", "requested"],
    ]


def test_a_run_is_shown_as_reviewed() -> None:
    shown = render_run(DONE, FOLDER) + "\n"
    assert shown == read_snapshot("train-run.txt", shown)


def test_what_was_not_served_is_unknown() -> None:
    lines = render_run(DONE, FOLDER).splitlines()
    (prose,) = [line.split() for line in lines if line.startswith("  prose")]
    assert prose == ["prose", "7", "unknown", "1.50", "1.60", "0.35", "0.10", "0.05"]


def test_a_run_says_where_its_drafter_is() -> None:
    assert render_run(DONE, FOLDER).endswith("\ndrafter  runs/one/drafter")
