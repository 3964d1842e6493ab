"""A `Tuning` as a report and as a page: the choice and its reasons, the predictions, the starts."""

from slipstream.reporting.drawing import (
    DOT,
    Scale,
    draw,
    draw_axes,
    draw_grid,
    frame,
    frame_panel,
    join,
    make_scales,
    round_up,
    rule,
    write,
)
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.measuring.conditions import (
    describe_conditions,
    describe_machine_loads,
    describe_plan,
)
from slipstream.reporting.report import Report, Section, Table, tabulate
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.speed_model import Prediction
from slipstream.tuning.tuner import Tuning

_PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


def render_tuning_html(tuning: Tuning) -> str:
    profile = tuning.profile
    speeds = Figure(
        "tokens per second by draft length",
        "One panel per load. The line is predicted, with its 95 % band; the dashed line is an "
        "engine without drafts; the ring is the best; a diamond was served to confirm it.",
        [_draw_load(profile, load) for load in _list_loads(profile)],
    )
    steps = Figure(
        "time of a step by its tokens, ms",
        "Dots are loads that were measured, filled with drafts and hollow without; the bar beside "
        "each is the fitted time. A step's tokens are those that it verifies, of all sequences.",
        [_draw_steps(profile)],
        layout="broad",
    )
    return render_page(describe_tuning(tuning), [speeds, steps])


def describe_tuning(tuning: Tuning) -> Report:
    """Return the report, the choice first and then its evidence."""
    profile = tuning.profile
    choice = profile.choice
    best = choice.prediction
    load = f"concurrency {choice.concurrency}"
    drafts = f"k = {choice.draft_length}" if choice.draft_length else "no drafts"
    held = "" if choice.meets_goal else "; no load meets the limit"
    sentence = f"{drafts} for {load}: {choice.reasons[0]}{held}"
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
        figure_note=load,
        sentence=sentence,
        sections=_list_sections(tuning),
    )


def _list_sections(tuning: Tuning) -> list[Section]:
    profile, more = tuning.profile, len(tuning.starts) + len(tuning.untried)
    untried = [f"not tried: {what} (--starts {more} would)" for what in tuning.untried]
    return [
        Section("reasons", lines=profile.choice.reasons[1:]),
        Section("advice", lines=_list_advice(profile)),
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
        Section("starts", _tabulate_starts(tuning)),
        *describe_machine_loads(
            [
                (f"start {number}{', again' * start.repeated}", start.machine)
                for number, start in enumerate(tuning.starts, 1)
            ]
        ),
        Section(
            "other settings",
            lines=[*(one.verdict for one in tuning.trials), *tuning.failed, *untried],
        ),
        *describe_conditions(profile.conditions),
        describe_plan("the tuned engine", tuning.plan),
    ]


def _tabulate_acceptance(profile: SpeedProfile) -> Table:
    return tabulate(
        profile.acceptance,
        {
            "kind": lambda one: one.kind,
            "drafted": lambda one: str(one.draft_length),
            "drafts": lambda one: str(one.total.drafts),
            "tokens per step": lambda one: f"{one.expect(one.draft_length).value:.2f}",
            "accepted up to a position": lambda one: " ".join(
                f"{share:.2f}" for share in one.total.by_position
            ),
        },
        words=(0, 4),
    )


def _tabulate_confirmations(profile: SpeedProfile) -> Table:
    return tabulate(
        profile.confirmations,
        {
            "drafted": lambda one: str(one.draft_length),
            "predicted ms per token": lambda one: f"{1000 * one.predicted_seconds_per_token:.1f}",
            "served ms per token": lambda one: f"{1000 * one.measured_seconds_per_token:.1f}",
            "off by": lambda one: f"{one.off_by:+.1%}",
        },
    )


def _tabulate_starts(tuning: Tuning) -> Table:
    return tabulate(
        tuning.starts,
        {
            "purpose": lambda one: one.because,
            "concurrency": lambda one: " ".join(map(str, one.concurrencies)),
            "seconds to start": lambda one: f"{one.start_seconds:.0f}",
            "total seconds": lambda one: f"{one.seconds:.0f}",
        },
        words=(0, 1),
    )


def _list_loads(profile: SpeedProfile) -> list[int]:
    """List the loads that share steps and can be predicted; beyond them requests wait."""
    believed = {one.concurrency for one in profile.predictions if not one.far}
    return sorted(load for load in believed if load <= profile.max_sequences)


def _list_near(profile: SpeedProfile, load: int) -> list[Prediction]:
    return [one for one in profile.predictions if one.concurrency == load and not one.far]


def _list_advice(profile: SpeedProfile) -> list[str]:
    choice, lines = profile.choice, []
    if choice.overflow_above is not None:
        lines.append(
            f"above concurrency {choice.overflow_above} a plain engine is faster: "
            "send the excess to a plain replica"
        )
    if choice.schedule:
        ranges = ", ".join(f"{one.first}-{one.last}: {one.draft_length}" for one in choice.schedule)
        lines.append(
            f"a schedule of drafts by batch may win ({ranges}); only an engine start can show it"
        )
    return lines


def _tabulate(profile: SpeedProfile) -> Table:
    columns: list[dict[int, str]] = []
    loads = _list_loads(profile)
    for load in loads:
        near = _list_near(profile, load)
        best = max(near, key=lambda one: one.tokens_per_second)
        columns.append(
            {
                one.draft_length: f"{one.tokens_per_second:.1f} {_PLUS_MINUS}{one.error:.0%}"
                + ("*" if one is best else " ")
                for one in near
            }
        )
    rows = [
        (str(length) if length else "plain", *(column.get(length, "-") for column in columns))
        for length in sorted({one.draft_length for one in profile.predictions})
    ]
    return Table(("drafted", *(f"concurrency {load}" for load in loads)), rows)


def _tabulate_steps(profile: SpeedProfile) -> Table:
    steps = profile.step_time
    rows = [
        (
            name,
            *(
                f"{1000 * value:.2f} {_PLUS_MINUS}{1000 * error:.2f}"
                for value, error in cost.list_costs(steps.spread)
            ),
            str(cost.points),
        )
        for name, cost in (("with drafts", steps.drafting), ("plain", steps.plain))
        if cost is not None
    ]
    return Table(("ms per step", "fixed", "per sequence", "per verified token", "loads"), rows)


def _draw_load(profile: SpeedProfile, load: int) -> str:
    own = _list_near(profile, load)
    drafting = [one for one in own if one.draft_length]
    best = max(own, key=lambda one: one.tokens_per_second)
    top = round_up(max(one.tokens_per_second * (1 + one.error) for one in own))
    lengths = [one.draft_length for one in drafting]
    x, y = make_scales((min(lengths), max(lengths)), top, right=190)

    def place(side: int) -> list[tuple[float, float]]:
        """Return the line, or an edge of its band."""
        return [
            (x(one.draft_length), y(max(0.0, one.tokens_per_second * (1 + side * one.error))))
            for one in drafting
        ]

    parts = [
        draw("path", d=f"{join([*place(1), *reversed(place(-1))])}Z", kind="band"),
        *draw_axes(f"concurrency {load}", f"{top:g}", lengths, x, y),
        draw("path", d=join(place(0)), kind="line b"),
    ]
    for plain in own:
        if not plain.draft_length:
            height = y(plain.tokens_per_second)
            path = join([(0, height), (x.end + 14, height)])
            parts.append(draw("path", d=path, kind="line a"))
    if best.draft_length:
        ring = {"cx": x(best.draft_length), "cy": y(best.tokens_per_second)}
        parts.append(draw("circle", r=5.0, kind="dot a", **ring))
    if load == profile.choice.concurrency:
        parts += _draw_served(profile, x, y)
    speeds = ", ".join(f"{one.draft_length or 'plain'} {one.tokens_per_second:.1f}" for one in own)
    return frame_panel(f"concurrency {load}: tokens per second", speeds, *parts)


def _draw_served(profile: SpeedProfile, x: Scale, y: Scale) -> list[str]:
    parts: list[str] = []
    for one in profile.confirmations:
        if one.draft_length:
            predicted = profile.model.predict(one.draft_length, profile.choice.concurrency)
            height = y.clip(predicted.tokens_per_second / (1 + one.off_by))
            place = f"translate({x(one.draft_length):.1f} {height:.1f})"
            parts.append(draw("path", d="M0 -5L5 0L0 5L-5 0Z", transform=place, kind="dot b"))
    return parts


def _draw_steps(profile: SpeedProfile) -> str:
    tokens = [point.sequences * (point.draft_length + 1) for point in profile.points]
    top = round_up(1000 * max(point.seconds_per_step for point in profile.points))
    last = max(tokens)
    x, y = Scale(0, last, 30, 345), Scale(0, top, 180, 26)
    parts = [
        *draw_grid(y, 30, 350, figures=True),
        *(write(x(last * at), 197, f"{last * at:.0f}", "soft", "middle") for at in (0.5, 1)),
    ]
    for size, point in zip(tokens, profile.points, strict=True):
        fitted = 1000 * profile.step_time.predict(point.sequences, round(point.draft_length))[0]
        kind, across = "b" if point.draft_length else "a", x(size)
        height, line = y(1000 * point.seconds_per_step), y.clip(fitted)
        parts += [
            rule(across, line, across, height, f"tick {kind}"),
            rule(across - 5, line, across + 5, line, f"tick {kind}"),
            draw("circle", cx=across, cy=height, r=DOT, kind=f"dot {kind}"),
        ]
    description = f"{len(tokens)} loads, off the fit by {profile.step_time.spread:.1%}"
    return frame(360, 204, "time of a step, ms", description, *parts)
