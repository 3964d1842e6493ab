"""A training run as a report: its estimate, and its results."""

from slipstream.reporting.report import Report, Row, Section, Table, show
from slipstream.reporting.text.plan import tabulate_decisions
from slipstream.steering.drafts import Drafts
from slipstream.training.estimate import TrainEstimate
from slipstream.training.run import Evaluation, Figures, TrainFolder, TrainRun, tokens_per_step
from slipstream.units import UNKNOWN, show_bytes


def describe_estimate(expected: TrainEstimate) -> Report:
    """Return the stages with tokens, disk and time, and every choice with its reason."""
    disk = show_bytes(sum(stage.disk_bytes for stage in expected.stages))
    seconds = [stage.seconds for stage in expected.stages]
    known = [one for one in seconds if one is not None]
    time = _show_minutes(sum(known) if len(known) == len(seconds) else None)
    free = show_bytes(expected.free_bytes)
    stages = [
        (stage.name, stage.work, show_bytes(stage.disk_bytes), _show_minutes(stage.seconds))
        for stage in expected.stages
    ]
    return Report(
        title=f"training for {expected.settings.target}",
        answer="estimated",
        figure=time,
        figure_note=f"{disk} of disk",
        sentence=f"time {time}, disk {disk} of {free} that are free; kept in {expected.folder}",
        sections=[
            Section("stages", Table(("stage", "work", "disk", "time"), stages, words=(0, 1))),
            Section("settings", tabulate_decisions(expected.decisions)),
        ],
    )


def describe_run(run: TrainRun, folder: TrainFolder) -> Report:
    """Return the results of each stage, the acceptance by kind, and the drafter's folder."""
    stages = [
        (stage.name, f"{stage.seconds:.0f} s", _list_figures(stage.figures)) for stage in run.stages
    ]
    header = ("kind", "prompts", "served", "walked", "uniform", "by position")
    rows = [_describe_kind(kind, part) for kind, part in run.evaluated.items()]
    served = tokens_per_step({kind: one.served or Drafts() for kind, one in run.evaluated.items()})
    rates = sorted({f"{rate:.2f}" for rate in served.values()}, key=float)
    acceptance = Section(
        "tokens per step on held-out prompts, greedy", Table(header, rows, words=(0, 5))
    )
    return Report(
        title=f"a drafter for {run.settings.target}",
        answer="trained",
        figure=" to ".join((*rates[:1], *rates[1:][-1:])) or UNKNOWN,
        figure_note="tokens per step, served",
        sentence=f"drafter: {folder.drafter}",
        sections=[
            Section("stages", Table(("stage", "time", "figures"), stages, words=(0, 2))),
            acceptance,
        ],
    )


def _describe_kind(kind: str, part: Evaluation) -> Row:
    drafts = [one or Drafts() for one in (part.served, part.walked, part.uniform)]
    positions = " ".join(f"{share:.2f}" for share in part.by_position)
    rates = (show(one.tokens_per_step, 2) for one in drafts)
    return (kind, str(part.prompts), *rates, positions)


def _list_figures(figures: Figures) -> str:
    shown = {
        name.replace("_", " "): f"{value:.2f}" if isinstance(value, float) else value
        for name, value in figures.items()
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _show_minutes(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds / 60:.0f} min"
