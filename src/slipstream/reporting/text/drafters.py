"""The drafters for a target as text: the list, and how each one would be planned."""

from slipstream.planning.candidates import Candidate, DrafterList
from slipstream.reporting.tables import align
from slipstream.units import UNKNOWN


def render_drafters(listed: DrafterList) -> str:
    """Return the candidates by rank, then the reason for each rank and the plan."""
    head = [("target", listed.target)]
    if listed.base_models:
        head.append(("made from", ", ".join(listed.base_models)))
    head += [("machine", listed.machine or UNKNOWN), ("hub", listed.hub)]
    head.append(("plan takes", listed.chosen or "none of them unasked"))
    table = [("RANK", "DRAFTER", "METHOD", "LICENCE", "PAIR")]
    table += [_describe(rank, one) for rank, one in enumerate(listed.candidates, start=1)]
    parts = ["\n".join(align(head)), "\n".join(align(table))]
    parts += ["\n".join(_explain(rank, one)) for rank, one in enumerate(listed.candidates, start=1)]
    return "\n\n".join(parts)


def _describe(rank: int, candidate: Candidate) -> tuple[str, str, str, str, str]:
    joint = " because " if candidate.verdict == "does not fit" else ": "
    reason = "" if candidate.verdict == "fits" else f"{joint}{candidate.because}"
    return (
        str(rank),
        _name(candidate),
        candidate.method,
        candidate.licence or UNKNOWN,
        f"{candidate.verdict}{reason}",
    )


def _explain(rank: int, candidate: Candidate) -> list[str]:
    lines = [f"{rank}. {_name(candidate)}: {candidate.why}"]
    if candidate.note:
        lines.append(f"   {candidate.note}")
    if candidate.obstacle:
        lines.append(f"   not chosen automatically: {candidate.obstacle}")
    lines.append(f"   source: {'; '.join(candidate.sources)}")
    lines.append(f"   {candidate.command}")
    return lines


def _name(candidate: Candidate) -> str:
    return candidate.drafter or "(in the target)"
