"""Generations of a learnt drafter as a report and a page, and the prospect of another one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from slipstream.learning.generation import Generation, GenerationList, show_rate
from slipstream.measuring.comparing.design import LETTERS
from slipstream.reporting.drawing import Axes, draw_panel, round_up
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.report import Report, Section, align, show, tabulate
from slipstream.units import show_time

if TYPE_CHECKING:  # Numpy is not part of every installation.
    from slipstream.learning.deciding import Prospect


_GENERATIONS: dict[str, Callable[[Generation], str]] = {
    "generation": lambda one: str(one.number),
    "parent": lambda one: "none" if one.parent is None else str(one.parent),
    "created": lambda one: f"{one.made_at:%Y-%m-%d %H:%M}",
    "new tokens": lambda one: str(one.new_tokens),
    "tokens/step": lambda one: _show_change(one),
    "verdict": lambda one: one.verdict,
    "reason": lambda one: one.because,
}


def describe_generations(listed: GenerationList) -> Report:
    """Describe each generation, the oldest first, and where they lie."""
    learned = [one for one in listed.generations if one.number > 0]
    return Report(
        title=f"What {listed.run} has learned",
        answer=learned[-1].verdict if learned else "collecting",
        figure=str(sum(one.verdict == "kept" for one in learned)),
        figure_note=f"of {len(learned)} generations were kept",
        sentence=listed.last or "nothing was learned yet",
        sections=[
            Section("generations", tabulate(listed.generations, _GENERATIONS, (2, 4, 5, 6))),
            Section("folder", lines=[listed.folder]),
        ],
    )


def render_generations_html(listed: GenerationList) -> str:
    """Draw tokens per step over the run for each kind, a line for each drafter."""
    drafters = list(dict.fromkeys(one.drafter for one in listed.course))[-len(LETTERS) :]
    letters = dict(zip(drafters, LETTERS, strict=False))
    minutes = sorted({one.minute for one in listed.course})
    top = round_up(max((one.tokens_per_step for one in listed.course), default=0.0))
    panels = []
    for kind in dict.fromkeys(one.kind for one in listed.course):
        lines: dict[str, dict[int, list[float]]] = {}
        for one in listed.course:
            if one.kind == kind and one.drafter in letters:
                own = lines.setdefault(letters[one.drafter], {})
                own[one.minute] = [one.tokens_per_step]
        axes = Axes(minutes, top, lambda rate: f"{rate:.2f}")
        panels.append(draw_panel(kind, f"{kind}: tokens per step by minute", lines, axes))
    caption = "By minute of the run, of requests that one drafter answered from their beginning."
    key = [(letter, name) for name, letter in letters.items()]
    return render_page(
        describe_generations(listed), [Figure("tokens per step", caption, panels, key)]
    )


def _show_change(generation: Generation) -> str:
    parts = [
        f"{kind} {show_rate(generation.before.get(kind))}>{show_rate(drafts)}"
        for kind, drafts in generation.after.items()
    ]
    return " ".join(parts) or "not measured"


def render_prospect(prospect: "Prospect", wanted_tokens: int) -> str:
    """Write what a round would be now, and why it is begun or not."""
    header = ("KIND", "SHARE", "TOKENS/STEP", "SECONDS PER DAY", "SAVED BY 10 %")
    rows = [
        (
            one.kind,
            f"{one.token_share:.0%}",
            show(one.tokens_per_step, 2),
            f"{one.seconds_per_day:.0f}",
            f"{one.saved_seconds_per_day:.0f}",
        )
        for one in prospect.worth.kinds
    ]
    against = prospect.find_objection(forced=False)
    due = prospect.trigger or "no round is due: neither enough new text nor a drift"
    text = prospect.material
    facts = [
        ("kept", f"{prospect.new_tokens} of {wanted_tokens} new answer tokens"),
        ("round", f"{prospect.schedule.steps} steps, {show_time(prospect.worth.cost_seconds)}"),
        *([("replayed", f"{text.replayed_tokens} tokens of older text")] if text else []),
        ("due", due),
        ("begun", "yes" if prospect.trigger and not against else f"no: {against or due}"),
        ("worth", prospect.worth.because),
    ]
    return "\n".join([*align([header, *rows]), "", *align(facts)])
