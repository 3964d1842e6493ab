"""A `Tuning` as a report: the choice and its reasons, the predictions, the starts."""

from collections.abc import Sequence

from slipstream.reporting.pages.report import Report, Row, Section, Table, render_text
from slipstream.reporting.serving.machine import describe_machine_loads
from slipstream.reporting.text.conditions import describe_conditions, describe_plan
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.speed_model import Prediction
from slipstream.tuning.tuner import StartReport, Tuning


def render_tuning_text(tuning: Tuning) -> str:
    """Write what was found for the terminal."""
    return render_text(describe_tuning(tuning))


def describe_tuning(tuning: Tuning) -> Report:
    """Return the report, the choice first and then its evidence."""
    profile = tuning.profile
    choice = profile.choice
    best = choice.prediction
    drafts = f"k = {choice.draft_length}" if choice.draft_length else "no drafts"
    held = "" if choice.meets_goal else "; no load keeps the limit"
    sentence = f"{drafts} for {_name_load(choice.concurrency)}: {choice.reasons[0]}{held}"
    answer = "tuned" if choice.meets_goal else "failed"
    if (machine := tuning.disturbance) is not None:
        answer = "cannot tell"
        sentence = (
            f"Tune again when the machine is quiet: it was busy, {machine.describe()}. "
            f"By these times alone, {sentence}"
        )
    return Report(
        title=f"tuned: {profile.conditions.model}",
        answer=answer,
        figure=f"k = {choice.draft_length}" if choice.draft_length else "plain",
        interval=f"{1000 * best.seconds_per_token:.1f} ms per token, within {best.error:.0%}",
        figure_note=_name_load(choice.concurrency),
        sentence=sentence,
        sections=[
            Section("reasons", lines=choice.reasons[1:]),
            *_describe_advice(profile),
            Section(
                "predicted tokens per second",
                _tabulate(profile),
                lines=[
                    "* the best of a load; 95 % interval",
                    f"beyond concurrency {profile.max_sequences} requests wait (--users)",
                ],
            ),
            Section("acceptance", _tabulate_acceptance(profile)),
            Section("what a step costs", _tabulate_steps(profile), lines=profile.cautions),
            Section("predicted and served", _tabulate_confirmations(profile)),
            Section("starts", _tabulate_starts(tuning.starts)),
            *describe_machine_loads(
                [
                    (f"start {number}{', again' * start.repeated}", start.machine)
                    for number, start in enumerate(tuning.starts, 1)
                ]
            ),
            *_describe_trials(tuning),
            *describe_conditions(profile.conditions),
            describe_plan("the tuned engine", tuning.plan),
        ],
    )


def list_loads(profile: SpeedProfile) -> list[int]:
    """List the loads that share steps and can be predicted; beyond them requests wait."""
    believed = {one.concurrency for one in profile.predictions if not one.far}
    return sorted(load for load in believed if load <= profile.max_sequences)


def _name_load(concurrency: int) -> str:
    return f"concurrency {concurrency}"


def _describe_advice(profile: SpeedProfile) -> list[Section]:
    choice, lines = profile.choice, []
    if choice.overflow_above is not None:
        lines.append(
            f"above concurrency {choice.overflow_above} a plain engine is faster: "
            "send what comes on top to a plain replica"
        )
    if choice.schedule:
        ranges = ", ".join(f"{one.first}-{one.last}: {one.draft_length}" for one in choice.schedule)
        lines.append(f"a schedule of drafts by batch may win ({ranges}); only a start can show it")
    return [Section("advice", lines=lines)] if lines else []


def _tabulate(profile: SpeedProfile) -> Table:
    loads = list_loads(profile)
    cells: dict[tuple[int, int], Prediction] = {
        (one.draft_length, one.concurrency): one for one in profile.predictions
    }
    best = {
        load: max(
            (one for one in profile.predictions if one.concurrency == load and not one.far),
            key=lambda one: one.tokens_per_second,
        ).draft_length
        for load in loads
    }
    lengths = sorted({length for length, _ in cells})
    rows = [
        (
            str(length) if length else "plain",
            *(_show(cells[length, load], best[load] == length) for load in loads),
        )
        for length in lengths
    ]
    return Table(("drafted", *(f"concurrency {load}" for load in loads)), rows)


def _show(one: Prediction, best: bool) -> str:
    if one.far:
        return "-"
    return f"{one.tokens_per_second:.1f} \N{PLUS-MINUS SIGN}{one.error:.0%}{'*' if best else ' '}"


def _tabulate_acceptance(profile: SpeedProfile) -> Table:
    rows: list[Row] = []
    for one in profile.acceptance:
        places = " ".join(f"{share:.2f}" for share in one.by_position)
        step = one.expect(one.draft_length)
        rows.append((one.kind, str(one.draft_length), str(one.drafts), f"{step.value:.2f}", places))
    return Table(
        ("kind", "drafted", "drafts", "tokens per step", "accepted up to a position"), rows, (0, 4)
    )


def _tabulate_steps(profile: SpeedProfile) -> Table:
    lines = {"with drafts": profile.step_time.drafting, "plain": profile.step_time.plain}
    rows = [
        (
            name,
            *(
                f"{1000 * cost.value:.2f} \N{PLUS-MINUS SIGN}{1000 * cost.error:.2f}"
                for cost in (line.fixed, line.by_sequence, line.by_token)
            ),
            str(line.points),
        )
        for name, line in lines.items()
        if line is not None
    ]
    return Table(("ms of a step", "fixed", "a sequence", "a verified token", "loads"), rows)


def _tabulate_confirmations(profile: SpeedProfile) -> Table:
    rows = [
        (
            str(one.draft_length),
            f"{1000 * one.predicted_seconds_per_token:.1f}",
            f"{1000 * one.measured_seconds_per_token:.1f}",
            f"{one.off_by:+.1%}",
        )
        for one in profile.confirmations
    ]
    return Table(("drafted", "predicted ms per token", "served ms per token", "off by"), rows)


def _tabulate_starts(starts: Sequence[StartReport]) -> Table:
    rows = [
        (
            start.because,
            " ".join(map(str, start.concurrencies)),
            f"{start.start_seconds:.0f}",
            f"{start.seconds:.0f}",
        )
        for start in starts
    ]
    return Table(("what for", "concurrency", "seconds to start", "total seconds"), rows, (0, 1))


def _describe_trials(tuning: Tuning) -> list[Section]:
    lines = [trial.verdict for trial in tuning.trials]
    more = len(tuning.starts) + len(tuning.untried)
    lines += [f"not tried: {what} (--starts {more} would)" for what in tuning.untried]
    return [Section("other settings", lines=lines)] if lines else []
