"""A `Canary` in words: what was decided, then what it rests on."""

from slipstream.fleet.canary.record import Canary, Ratio
from slipstream.reporting.report import Report, Row, Section, Table, render_text, show
from slipstream.units import UNKNOWN

ANSWERS = {"promote": "promoted", "go-back": "went back", "undecided": "cannot tell"}


def render_canary_text(canary: Canary) -> str:
    """Show a canary on the terminal."""
    return f"{ANSWERS[canary.verdict.outcome].upper()}: {render_text(describe_canary(canary))}"


def describe_canary(canary: Canary) -> Report:
    """Tell what was tried, decided and done, and on what evidence."""
    verdict, speed = canary.verdict, canary.evidence.speed
    return Report(
        title=f"{canary.name} on {', '.join(canary.groups)} of {canary.fleet}",
        answer=ANSWERS[verdict.outcome],
        figure=UNKNOWN if speed is None else f"{speed.estimate:.2f}",
        interval=_show_interval(speed),
        figure_note="times the tokens per second of step time, against the other groups",
        sentence=_conclude(canary),
        sections=[
            Section("measured", _tabulate_ratios(canary)),
            *_describe_kinds(canary),
            Section("requests compared by group", _tabulate_groups(canary)),
            Section("what was done", lines=canary.done),
            Section("conditions", Table((), _list_facts(canary), words=(0, 1))),
        ],
    )


def _conclude(canary: Canary) -> str:
    verdict = canary.verdict
    what = "drafter" if canary.subject == "drafter" else "plan"
    ends = {
        "promote": f"The {what} was promoted to all groups",
        "go-back": f"The {what} was taken back",
        "undecided": f"Nothing was decided, and the {what} was taken back",
    }
    counted = f"{verdict.requests:,} requests of the canary, {verdict.fleet_requests:,} of all"
    return f"{ends[verdict.outcome]}, after {counted}: {verdict.because}."


def _tabulate_ratios(canary: Canary) -> Table:
    evidence = canary.evidence
    rows: list[Row] = [
        (name, show(ratio.estimate if ratio else None, 3), _show_interval(ratio))
        for name, ratio in (
            ("tokens per second of step time", evidence.speed),
            ("the same, if steps took what they did before", evidence.expected_speed),
            ("seconds of a step at the same batch and length", evidence.step_seconds),
        )
    ]
    return Table(("canary over others, against before", "ratio", "interval"), rows)


def _describe_kinds(canary: Canary) -> list[Section]:
    kinds = canary.evidence.kinds
    if not kinds:
        return []
    rows: list[Row] = [
        (
            kind.kind,
            str(kind.requests),
            f"{kind.canary:.1%}",
            f"{kind.others:.1%}",
            _show_points(kind.change),
            f"{_show_points(kind.low)} to {_show_points(kind.high)}",
        )
        for kind in kinds
    ]
    header = ("kind", "requests", "canary", "others", "change in points", "interval")
    return [Section("acceptance of a token after an accepted one", Table(header, rows))]


def _tabulate_groups(canary: Canary) -> Table:
    evidence = canary.evidence
    rows: list[Row] = [
        (
            group,
            "canary" if group in canary.groups else "as before",
            str(evidence.requests.get(group, 0)),
            show(evidence.mean_batch.get(group), 1),
        )
        for group in (*canary.groups, *canary.others)
    ]
    return Table(("group", "part", "requests", "mean batch"), rows, words=(0, 1))


def _list_facts(canary: Canary) -> list[Row]:
    errors, regret = canary.errors, canary.evidence.regret
    minutes = (canary.decided_at - canary.began_at).total_seconds() / 60
    judged = "not asked for"
    if regret is not None:
        judged = (
            f"{regret.answers} answers of each arm, {regret.tokens:,} tokens: at fault "
            f"{regret.canary_faults} and {regret.other_faults}, worst {regret.canary_worst:.3f} "
            f"and {regret.other_worst:.3f} below the best (a fault from {regret.gap:.3f} on)"
        )
    return [
        ("began", f"{canary.began_at:%Y-%m-%d %H:%M:%S %Z}, for {minutes:.1f} minutes"),
        ("before", canary.before or UNKNOWN),
        ("promoted if", f"shown to be faster than {canary.threshold:g} times the others"),
        ("requests before", f"{canary.evidence.requests_before:,} that could be compared"),
        ("at most", f"{canary.most_requests:,} requests of the canary"),
        (
            "false decisions",
            f"at most {errors.total:.1%} if nothing changed: by speed {errors.speed:.1%}, by "
            f"acceptance {errors.acceptance:.1%}, by regret {errors.regret:.1%}, by the machine's "
            f"own watch {errors.own_watch:.1%}",
        ),
        ("regret", judged),
    ]


def _show_interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return UNKNOWN
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def _show_points(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:+.1f}"
