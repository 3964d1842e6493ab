"""A `LaunchPlan` as text: the command, the memory, the faults and every reason."""

from collections.abc import Iterable, Sequence
from shlex import quote

from slipstream.planning.plan import Decision, Difference, LaunchPlan, MemoryBudget
from slipstream.reporting.report import Table, align, align_table
from slipstream.reporting.text.model import render_faults
from slipstream.units import UNKNOWN, show_bytes, show_number

SHOWN_NOTES = 2


def render_plan(plan: LaunchPlan, *, explain: bool) -> str:
    """Return the plan; with `explain`, the reason of every setting instead of the command."""
    lengths = plan.describe_lengths()
    head = align(
        [
            ("target", plan.target),
            ("drafter", _name_drafter(plan)),
            *((("length", lengths),) if lengths else ()),
            ("machine", f"{plan.machine or UNKNOWN}, capability {plan.capability or 'none'}"),
            ("recipe", plan.recipe or "none"),
            ("engine", f"{plan.engine} {plan.engine_version}"),
        ]
    )
    faults = render_faults((*plan.refusals, *plan.warnings))
    if plan.refusals and not explain:
        parts = [faults, head, render_memory(plan.memory), ["every setting and note: --explain"]]
        return "\n\n".join(map("\n".join, parts))
    body = (
        _explain((*plan.variables, *plan.decisions))
        if explain
        else [render_command(plan.argv(), plan.variables)]
    )
    if explain and plan.adaptive_verification:
        body.append(f"enable_adaptive_verification is not planned: {plan.adaptive_verification}")
    parts = [head, render_memory(plan.memory), body, _list_notes(plan, whole=explain)]
    parts.insert(0 if plan.refusals else len(parts), faults)
    return "\n\n".join("\n".join(part) for part in parts if part)


def _explain(decisions: Iterable[Decision]) -> list[str]:
    """Return a line for each setting, with its source and reason."""
    lines = []
    for one in decisions:
        source = "" if one.because.startswith(f"{one.source} ") else f"{one.source}: "
        lines.append(f"{' '.join(filter(None, (one.flag, one.value)))}  {source}{one.because}")
    return lines


def _list_notes(plan: LaunchPlan, *, whole: bool) -> list[str]:
    shown = plan.notes if whole else plan.notes[:SHOWN_NOTES]
    more = len(plan.notes) - len(shown)
    rest = [f"{more} more note{'s' * (more > 1)}: --explain"] if more else []
    return [*(f"note: {note}" for note in shown), *rest]


def _name_drafter(plan: LaunchPlan) -> str:
    if plan.speculation is None:
        return "none: plain decoding"
    return plan.drafter or f"none: the engine drafts by {plan.speculation.method.value}"


def render_sglang(plan: LaunchPlan) -> str:
    """Return the plan as SGLang's command, and the settings without a counterpart."""
    command, left_out = plan.sglang_argv()
    missing = f"\n\nno counterpart in SGLang: {', '.join(left_out)}" if left_out else ""
    return render_command(command, ()) + missing


def render_memory(memory: MemoryBudget) -> list[str]:
    """Return the memory use and how many sequences fit."""
    rows = [(item.name, show_bytes(item.size_bytes), item.because) for item in memory.items]
    pool, rest = memory.kv_pool_bytes, memory.rest_bytes
    is_rest = pool is None or rest is None or pool == rest
    why = f"of {show_bytes(rest)} that are left, as --kv-cache-memory-bytes says"
    rows.append(("cache", show_bytes(pool), "the rest of the usable memory" if is_rest else why))
    total = f"of {show_bytes(memory.device_bytes)}"
    rows.append(("usable", show_bytes(memory.usable_bytes), total))
    per_token = show_number(memory.kv_bytes_per_token, "bytes")
    fit = memory.sequences_that_fit
    fitting = "how many fit is unknown" if fit is None else f"{fit} of them fit{'s' * (fit == 1)}"
    lines = ["memory", *align(rows, indent="  ")]
    lines.append(
        f"  a token takes {per_token}, a sequence of full length "
        f"{show_bytes(memory.bytes_per_sequence)}: {fitting}"
    )
    if memory.usual_sequences_that_fit is not None:
        lines[-1] += f", or {memory.usual_sequences_that_fit} of {memory.usual_tokens} tokens"
    if memory.unknown:
        lines.append(f"  unknown: {', '.join(memory.unknown)}")
    return lines


def render_difference(differences: tuple[Difference, ...]) -> str:
    return "\n".join(align_table(tabulate_differences(differences))) or "the plans are the same"


def render_command(argv: list[str], environment: tuple[Decision, ...]) -> str:
    """Write a command line as a shell takes it, a flag a line."""
    lines = [f"{decision.flag}={quote(decision.value or '')} \\" for decision in environment]
    words = [quote(word) for word in argv]
    start = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    lines.append(" ".join(words[:start]))
    for word in words[start:]:
        if word.startswith("--"):
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def tabulate_decisions(decisions: Iterable[Decision]) -> Table:
    """Return settings with their sources and reasons."""
    rows = [
        (one.flag, "set" if one.value is None else one.value, one.source, one.because)
        for one in decisions
    ]
    return Table(("setting", "value", "source", "because"), rows, words=range(4))


def tabulate_differences(
    differences: Sequence[Difference], left: str = "first", right: str = "second"
) -> Table:
    """Return what two plans set differently, with the reasons of the second."""
    rows = [
        (one.flag, one.left or "not set", one.right or "not set", one.because)
        for one in differences
    ]
    return Table(("setting", left, right, "because"), rows, words=range(4))
