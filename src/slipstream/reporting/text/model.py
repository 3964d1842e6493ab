"""What is known of a model as text: checkpoint, recipes with their evidence, drafters, a pair."""

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Layers
from slipstream.checkpoints.pairing import Fault, Pairing
from slipstream.planning.drafters.candidates import Candidate, DrafterList
from slipstream.planning.drafters.resolution import ModelReport
from slipstream.recipes.recipe import Evidence, Recipe
from slipstream.reporting.text.tables import align
from slipstream.units import UNKNOWN, show_bytes, show_number

NOT_MEASURED = "not measured"


def render_model(report: ModelReport) -> str:
    """Return the target's facts, the recipes for it and its drafters."""
    parts = [render_checkpoint(report.target)]
    if report.recipes:
        parts.append(render_recipes(report.recipes))
    parts.append(_render_drafters(report.drafters))
    parts += [f"note: {note}" for note in report.notes]
    return "\n\n".join(parts)


def render_checkpoint(checkpoint: Checkpoint) -> str:
    """Return the facts of a checkpoint, unknown ones named as such."""
    quantization = checkpoint.quantization
    stored = f"{quantization.scheme} ({quantization.method})" if quantization else None
    plain = checkpoint.dtype or UNKNOWN if checkpoint.quantized is False else UNKNOWN
    rows = [
        ("model", checkpoint.name),
        ("revision", checkpoint.revision or UNKNOWN),
        ("facts from", checkpoint.source),
        ("class", checkpoint.architecture or UNKNOWN),
        ("layers", ", ".join(map(_describe_part, checkpoint.layers or ())) or UNKNOWN),
        ("hidden size", show_number(checkpoint.hidden_size)),
        ("vocabulary", show_number(checkpoint.vocabulary_size)),
        ("context", show_number(checkpoint.context, "tokens")),
        ("rope", _describe_rope(checkpoint)),
        ("stored as", stored or plain),
        ("weights", _describe_weights(checkpoint)),
        ("modalities", ", ".join(("text", *(checkpoint.modalities or ())))),
        ("licence", checkpoint.licence or UNKNOWN),
        ("gated", {True: "yes", False: "no", None: UNKNOWN}[checkpoint.gated]),
    ]
    if checkpoint.experts is not None:
        active = show_number(checkpoint.experts.active)
        rows.insert(5, ("experts", f"{checkpoint.experts.total}, {active} per token"))
    if checkpoint.draft is not None:
        rows += _describe_draft(checkpoint.draft)
    return "\n".join(align(rows))


def render_pairing(pairing: Pairing) -> str:
    """Return both checkpoints and every fault between them."""
    codes = ", ".join(fault.code for fault in pairing.refusals)
    verdict = f"do not fit: {codes}" if codes else "fit"
    return "\n\n".join(
        [
            render_checkpoint(pairing.target),
            render_checkpoint(pairing.drafter),
            "\n".join([f"they {verdict}", *render_faults(pairing.faults)]),
        ]
    )


def render_faults(faults: tuple[Fault, ...]) -> list[str]:
    """Write each fault with its way out."""
    words = {"refuse": "refused", "warn": "warning"}
    return [
        line
        for fault in faults
        for line in (
            f"{words[fault.verdict]} ({fault.code}): {fault.message}",
            f"  hint: {fault.hint}",
        )
    ]


def _describe_part(part: Layers) -> str:
    if part.kind in ("recurrent", "shared"):
        return f"{part.count} {part.kind}"
    heads, size = show_number(part.key_value_heads), show_number(part.head_size)
    window = f" in a window of {part.window}" if part.window else ""
    return f"{part.count} {part.kind} ({heads} KV heads of {size}{window})"


def _describe_rope(checkpoint: Checkpoint) -> str:
    rope = checkpoint.rope
    if rope is None:
        return UNKNOWN
    theta = UNKNOWN if rope.theta is None else f"{rope.theta:g}"
    factor = f" x{rope.factor:g}" if rope.factor else ""
    return f"theta {theta}, scaling {rope.scaling or UNKNOWN}{factor}"


def _describe_weights(checkpoint: Checkpoint) -> str:
    weights = checkpoint.weights
    if weights is None:
        return UNKNOWN
    kinds = ", ".join(f"{kind} {show_bytes(size)}" for kind, size in weights.bytes_by_dtype.items())
    return f"{show_bytes(weights.total_bytes)}{f' ({kinds})' if kinds else ''}"


def _describe_draft(draft: DraftPart) -> list[tuple[str, str]]:
    ids = draft.target_layer_ids
    listed = UNKNOWN if ids is None else ", ".join(map(str, ids))
    outputs = draft.layer_outputs
    counted = "" if outputs is None else f" (outputs of layers {', '.join(map(str, outputs))})"
    return [
        ("drafts as", f"{draft.family}, {draft.layout or UNKNOWN} layout"),
        ("block", f"{show_number(draft.block_size)}, drafts {show_number(draft.longest_draft)}"),
        ("reads", f"{listed}{counted}"),
        ("mask token", show_number(draft.mask_token_id)),
        ("head", {True: "its own", False: "the target's", None: UNKNOWN}[draft.own_head]),
        ("draft words", show_number(draft.draft_vocabulary) if draft.draft_vocabulary else "all"),
    ]


def _render_drafters(listed: DrafterList) -> str:
    """Return the candidates by rank, then the reason for each rank and its command."""
    head = [("made from", ", ".join(listed.base_models))] if listed.base_models else []
    head += [("machine", listed.machine or UNKNOWN), ("hub", listed.hub)]
    if not listed.candidates:
        hint = f"slipstream train {listed.target}, or slipstream plan {listed.target}"
        return "\n".join(align([*head, ("drafters", f"none known ({hint})")]))
    head.append(("plan takes", listed.chosen or "none of them (use --drafter)"))
    table = [("RANK", "DRAFTER", "METHOD", "LICENCE", "PAIR")]
    numbered = list(enumerate(listed.candidates, start=1))
    table += [_describe_candidate(rank, one) for rank, one in numbered]
    parts = [align(head), align(table), *(_explain_candidate(rank, one) for rank, one in numbered)]
    return "\n\n".join("\n".join(part) for part in parts)


def _describe_candidate(rank: int, candidate: Candidate) -> tuple[str, str, str, str, str]:
    joint = " because " if candidate.verdict == "does not fit" else ": "
    reason = "" if candidate.verdict == "fits" else f"{joint}{candidate.because}"
    return (
        str(rank),
        _name_candidate(candidate),
        candidate.method,
        candidate.licence or UNKNOWN,
        f"{candidate.verdict}{reason}",
    )


def _explain_candidate(rank: int, candidate: Candidate) -> list[str]:
    lines = [f"{rank}. {_name_candidate(candidate)}: {candidate.why}"]
    if candidate.note:
        lines.append(f"   {candidate.note}")
    if candidate.obstacle:
        lines.append(f"   not chosen automatically: {candidate.obstacle}")
    lines.append(f"   source: {'; '.join(candidate.sources)}")
    lines.append(f"   {candidate.command}")
    return lines


def _name_candidate(candidate: Candidate) -> str:
    return candidate.drafter or "(in the target)"


def render_recipes(recipes: tuple[Recipe, ...]) -> str:
    """List recipes, one a line, with the best of their evidence."""
    header = ("RECIPE", "MACHINES", "ENGINE", "DRAFTER", "BEST FIGURE")
    rows = [
        (
            recipe.name,
            _describe_machines(recipe),
            f"{recipe.engine} {recipe.engine_version}"[:24],
            recipe.drafter,
            _describe_best(recipe),
        )
        for recipe in recipes
    ]
    return "\n".join(align([header, *rows]))


def render_recipe(recipe: Recipe) -> str:
    """Return one recipe in full."""
    settings = recipe.settings.model_dump(exclude_none=True, exclude_defaults=True)
    lines = align(
        [
            ("recipe", f"{recipe.name}: {recipe.title}"),
            ("target", recipe.target),
            ("drafter", recipe.drafter),
            ("machines", _describe_machines(recipe)),
            ("engine", f"{recipe.engine} {recipe.engine_version}"),
            *(("setting", f"{key} = {value}") for key, value in settings.items()),
            *(("obsolete", f"{old.what}: {old.why}") for old in recipe.obsolete),
        ]
    )
    lines += ["", "evidence:" if recipe.evidence else f"evidence: {NOT_MEASURED}"]
    lines += [f"  {describe_evidence(evidence)}" for evidence in recipe.evidence]
    return "\n".join(lines)


def describe_evidence(evidence: Evidence) -> str:
    """Write a figure with who measured it, on what, with what."""
    figures = [
        f"{value:g} {unit}"
        for value, unit in (
            (evidence.tokens_per_s, "tok/s"),
            (evidence.plain_tokens_per_s, "tok/s without"),
            (evidence.speedup, "times as fast"),
            (evidence.acceptance_length, "tokens per step"),
        )
        if value is not None
    ]
    if evidence.acceptance_rate is not None:
        figures.append(f"{100 * evidence.acceptance_rate:.0f} % accepted")
    load = f" at {evidence.concurrency} users" if evidence.concurrency else ""
    measured = ", ".join(figures) or evidence.note or "no figure"
    note = f"; {evidence.note}" if figures and evidence.note else ""
    where = [evidence.hardware, evidence.engine_version, evidence.settings, evidence.date]
    return (
        f"{evidence.workload}{load}: {measured}{note} "
        f"[{evidence.by}, {', '.join(part for part in where if part)}; {evidence.source}]"
    )


def _describe_machines(recipe: Recipe) -> str:
    machines = ", ".join(recipe.machines)
    return f"{recipe.nodes}x {machines}" if recipe.nodes > 1 else machines


def _describe_best(recipe: Recipe) -> str:
    best = max(
        (evidence for evidence in recipe.evidence if evidence.tokens_per_s is not None),
        key=lambda evidence: evidence.tokens_per_s or 0,
        default=None,
    )
    if best is None:
        return NOT_MEASURED if not recipe.evidence else "see --recipe"
    load = f" at {best.concurrency} users" if best.concurrency else ""
    return f"{best.tokens_per_s:g} tok/s, {best.workload}{load} ({best.by})"
