"""A training run as text: its estimate, and its results."""

from slipstream.planning.plan import Decision
from slipstream.reporting.tables import align
from slipstream.training.acceptance import DrafterAcceptance
from slipstream.training.estimate import StageEstimate, TrainEstimate
from slipstream.training.run import TrainFolder, TrainRun
from slipstream.training.served import ServedAcceptance
from slipstream.units import UNKNOWN, show_bytes


def render_estimate(expected: TrainEstimate) -> str:
    """Return the stages with tokens, disk and time, and every choice with its reason."""
    stages = [("STAGE", "WORK", "DISK", "TIME"), *map(_describe_stage, expected.stages)]
    disk = sum(stage.disk_bytes for stage in expected.stages)
    lines = [
        *align(stages),
        "",
        f"{show_bytes(disk)} of disk in all, {show_bytes(expected.free_bytes)} are free; "
        f"kept in {expected.folder}",
        "",
        *_explain(expected.decisions),
    ]
    return "\n".join(lines)


def render_run(run: TrainRun, folder: TrainFolder) -> str:
    """Return the results of each stage, the acceptance by kind, and the drafter's folder."""
    header = ("KIND", "PROMPTS", "SERVED", "WALKED", "UNIFORM", "BY POSITION")
    rows = [
        (
            kind,
            str(part.prompts),
            *(_show_figure(figure) for figure in (part.served, part.walked, part.uniform)),
            " ".join(f"{share:.2f}" for share in part.by_position),
        )
        for kind, part in run.judged.items()
    ]
    stages = [
        (stage.name, f"{stage.seconds:.0f} s", _list_figures(stage.figures)) for stage in run.stages
    ]
    return "\n".join(
        [
            *align(stages),
            "",
            "tokens per step on held-out prompts, greedy:",
            *align([header, *rows], indent="  "),
            "",
            f"drafter  {folder.drafter}",
        ]
    )


def _show_figure(figure: DrafterAcceptance | ServedAcceptance | None) -> str:
    return UNKNOWN if figure is None else f"{figure.tokens_per_step:.2f}"


def _describe_stage(stage: StageEstimate) -> tuple[str, str, str, str]:
    time = UNKNOWN if stage.seconds is None else f"{stage.seconds / 60:.0f} min"
    return stage.name, stage.work, show_bytes(stage.disk_bytes), time


def _explain(decisions: tuple[Decision, ...]) -> list[str]:
    rows = [
        (decision.flag, decision.value or "", decision.source, decision.because)
        for decision in decisions
    ]
    return align([("SETTING", "VALUE", "SOURCE", "BECAUSE"), *rows])


def _list_figures(figures: dict[str, int | float | str]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.2f}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in figures.items()
    )
