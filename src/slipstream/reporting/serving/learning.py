"""Generations of a learnt drafter and the prospect of another one, as text."""

from typing import TYPE_CHECKING

from slipstream.learning.generation import Generation, GenerationList, show_rate
from slipstream.reporting.report import align, show
from slipstream.units import show_time

if TYPE_CHECKING:  # Numpy is not part of every installation.
    from slipstream.learning.deciding import Prospect


def render_generations(listed: GenerationList) -> str:
    """Write a line for each generation, the oldest first, and where they lie."""
    if not listed.generations:
        return f"nothing was learnt yet in {listed.folder}"
    header = ("GENERATION", "PARENT", "CREATED", "NEW TOKENS", "TOKENS/STEP", "VERDICT", "REASON")
    rows = [
        (
            str(one.number),
            "none" if one.parent is None else str(one.parent),
            f"{one.made_at:%Y-%m-%d %H:%M}",
            str(one.new_tokens),
            _show_change(one),
            one.verdict,
            one.because,
        )
        for one in listed.generations
    ]
    return "\n".join([*align([header, *rows]), "", f"folder: {listed.folder}"])


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
