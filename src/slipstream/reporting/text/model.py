"""What is known of a model as text: checkpoint, recipes with their evidence, drafters, a pair."""

from itertools import groupby

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Layers, Rope, Weights
from slipstream.checkpoints.pairing import Fault, Pairing
from slipstream.planning.drafters.candidates import Candidate, DrafterList
from slipstream.planning.drafters.resolution import ModelReport
from slipstream.recipes.recipe import Evidence, Recipe
from slipstream.reporting.report import align
from slipstream.units import UNKNOWN, show_bytes, show_number

NOT_MEASURED = "not measured"
NONE_CHOSEN = "none of them (use --drafter)"


def render_model(report: ModelReport) -> str:
    """Return the target's facts, the recipes for it and its drafters."""
    recipes = [render_recipes(report.recipes)] if report.recipes else []
    notes = [f"note: {note}" for note in report.notes]
    drafters = _render_drafters(report.drafters)
    return "\n\n".join([render_checkpoint(report.target), *recipes, drafters, *notes])


def render_checkpoint(checkpoint: Checkpoint) -> str:
    """Return the facts of a checkpoint, unknown ones named as such."""
    quantization, experts, rope = checkpoint.quantization, checkpoint.experts, checkpoint.rope
    plain = checkpoint.dtype or UNKNOWN if checkpoint.quantized is False else UNKNOWN
    active = f"{experts.total}, {show_number(experts.active)} per token" if experts else ""
    rows = [
        ("model", checkpoint.name),
        ("revision", checkpoint.revision or UNKNOWN),
        ("facts from", checkpoint.source),
        ("class", checkpoint.architecture or UNKNOWN),
        ("layers", ", ".join(map(_describe_part, checkpoint.layers or ())) or UNKNOWN),
        *([("experts", active)] if active else []),
        ("hidden size", show_number(checkpoint.hidden_size)),
        ("vocabulary", show_number(checkpoint.vocabulary_size)),
        ("context", show_number(checkpoint.context, "tokens")),
        ("rope", _describe_rope(rope) if rope else UNKNOWN),
        ("stored as", f"{quantization.scheme} ({quantization.method})" if quantization else plain),
        ("weights", _describe_weights(checkpoint.weights)),
        ("modalities", ", ".join(("text", *(checkpoint.modalities or ())))),
        ("licence", checkpoint.licence or UNKNOWN),
        ("gated", {True: "yes", False: "no", None: UNKNOWN}[checkpoint.gated]),
        *(_describe_draft(checkpoint.draft) if checkpoint.draft else []),
    ]
    return "\n".join(align(rows))


def render_pairing(pairing: Pairing) -> str:
    codes = ", ".join(fault.code for fault in pairing.refusals)
    verdict = f"they do not fit: {codes}" if codes else "they fit"
    checkpoints = [render_checkpoint(one) for one in (pairing.target, pairing.drafter)]
    return "\n\n".join([*checkpoints, "\n".join([verdict, *render_faults(pairing.faults)])])


def render_faults(faults: tuple[Fault, ...]) -> list[str]:
    """Write each fault with its way out."""
    words = {"refuse": "refused", "warn": "warning"}
    return [
        f"{words[fault.verdict]} ({fault.code}): {fault.message}\n  hint: {fault.hint}"
        for fault in faults
    ]


def _describe_part(part: Layers) -> str:
    if part.kind in ("recurrent", "shared", "none"):
        return f"{part.count} {'without attention' if part.kind == 'none' else part.kind}"
    heads, size = show_number(part.key_value_heads), show_number(part.head_size)
    window = f" in a window of {part.window}" if part.window else ""
    return f"{part.count} {part.kind} ({heads} KV heads of {size}{window})"


def _describe_rope(rope: Rope) -> str:
    theta = UNKNOWN if rope.theta is None else f"{rope.theta:g}"
    factor = f" x{rope.factor:g}" if rope.factor else ""
    return f"theta {theta}, scaling {rope.scaling or UNKNOWN}{factor}"


def _describe_weights(weights: Weights | None) -> str:
    if weights is None:
        return UNKNOWN
    kinds = ", ".join(f"{kind} {show_bytes(size)}" for kind, size in weights.bytes_by_dtype.items())
    return f"{show_bytes(weights.total_bytes)}{f' ({kinds})' if kinds else ''}"


def _describe_draft(draft: DraftPart) -> list[tuple[str, str]]:
    listed, outputs = (
        UNKNOWN if ids is None else ", ".join(map(str, ids))
        for ids in (draft.target_layer_ids, draft.layer_outputs)
    )
    counted = "" if outputs == UNKNOWN else f" (outputs of layers {outputs})"
    return [
        ("drafts as", f"{draft.family}, {draft.layout or UNKNOWN} layout"),
        ("block", f"{show_number(draft.block_size)}, drafts {show_number(draft.longest_draft)}"),
        ("reads", f"{listed}{counted}"),
        ("mask token", show_number(draft.mask_token_id)),
        ("head", {True: "its own", False: "the target's", None: UNKNOWN}[draft.own_head]),
        (
            "draft vocabulary",
            show_number(draft.draft_vocabulary) if draft.draft_vocabulary else "all",
        ),
    ]


def _render_drafters(listed: DrafterList) -> str:
    """Return the candidates by rank, each with the reason for it and its command."""
    head = [("made from", ", ".join(listed.base_models))] if listed.base_models else []
    head += [("machine", listed.machine or UNKNOWN), ("hub", listed.hub)]
    if not listed.candidates:
        hint = f"train one: slipstream train {listed.target} --prompts FILE"
        return "\n".join([*align([*head, ("drafters", "none known")]), "", hint])
    by = f" (recipe {listed.recipe})" if listed.recipe else ""
    head.append(("plan chooses", f"{listed.chosen}{by}" if listed.chosen else NONE_CHOSEN))
    details = [_explain_candidate(rank, one) for rank, one in enumerate(listed.candidates, start=1)]
    return "\n\n".join("\n".join(part) for part in (align(head), *details))


def _describe_verdict(candidate: Candidate) -> str:
    if candidate.verdict == "fits":
        return candidate.verdict
    joint = " because " if candidate.verdict == "does not fit" else ": "
    return f"{candidate.verdict}{joint}{candidate.because}"


def _explain_candidate(rank: int, one: Candidate) -> list[str]:
    facts = f"{one.method}, licence {one.licence or UNKNOWN}"
    pair = f"pair: {_describe_verdict(one)}"
    obstacle = one.obstacle and f"not chosen automatically: {one.obstacle}"
    source = f"source: {'; '.join(one.sources)}"
    details = (one.why, pair, one.note, obstacle, source, one.command)
    title = f"{rank}. {one.drafter or '(in the target)'} ({facts})"
    return [title, *(f"   {line}" for line in details if line)]


def render_recipes(recipes: tuple[Recipe, ...]) -> str:
    """List recipes below their targets, each with its machines and its best speed for one user."""
    rows = [
        (f"  {one.name}", _describe_machines(one), _describe_best(one))
        for one in sorted(recipes, key=lambda one: (one.target.lower(), one.name))
    ]
    lines = align([("RECIPE, BY TARGET", "MACHINES", "ONE USER"), *rows])
    targets = {f"  {one.name}": one.target for one in recipes}
    shown, last = lines[:1], ""
    for (name, *_), line in zip(rows, lines[1:], strict=True):
        if targets[name] != last:
            shown.append(last := targets[name])
        shown.append(line)
    return "\n".join(shown)


def render_recipe(recipe: Recipe) -> str:
    settings = recipe.settings.model_dump(exclude_none=True, exclude_defaults=True)
    rows = [
        ("recipe", f"{recipe.name}: {recipe.title}"),
        ("target", recipe.target),
        ("drafter", recipe.drafter),
        ("machines", _describe_machines(recipe)),
        ("engine", f"{recipe.engine} {recipe.engine_version}"),
        *(("setting", f"{key} = {value}") for key, value in settings.items()),
        *(("obsolete", f"{old.what}: {old.why}") for old in recipe.obsolete),
        *(("note", note) for note in recipe.notes),
    ]
    title = "evidence:" if recipe.evidence else f"evidence: {NOT_MEASURED}"
    groups = groupby(recipe.evidence, key=_describe_conditions)
    shown = (_tabulate_evidence(conditions, tuple(rows)) for conditions, rows in groups)
    return "\n".join([*align(rows), "", title, *(line for lines in shown for line in lines)])


_FIGURES = {
    "tokens_per_s": "TOK/S",
    "plain_tokens_per_s": "WITHOUT",
    "speedup": "SPEEDUP",
    "ttft_ms": "TTFT MS",
    "tpot_ms": "TPOT MS",
    "acceptance_length": "TOKENS/STEP",
    "acceptance_rate": "ACCEPTED",
    "kv_dtype": "CACHE",
    "lost_share": "NO LONGER BEST",
}
_SHARES = {"acceptance_rate": 0, "lost_share": 1}


def _describe_conditions(evidence: Evidence) -> str:
    """Return who measured, on what, with what, and where that is written."""
    where = [evidence.hardware, evidence.engine_version, evidence.settings, evidence.date]
    conditions = ", ".join(part for part in where if part)
    return f"{evidence.by}, {conditions} [{evidence.source}]"


def _tabulate_evidence(conditions: str, evidence: tuple[Evidence, ...]) -> list[str]:
    """Return the figures of measurements under the same conditions, one a line."""
    known = [name for name in _FIGURES if any(getattr(one, name) is not None for one in evidence)]
    rows = [("WORKLOAD", "USERS", *(_FIGURES[name] for name in known), "NOTE")]
    rows += [
        (
            one.workload,
            "" if one.concurrency is None else str(one.concurrency),
            *(_show_figure(one, name) for name in known),
            one.note,
        )
        for one in evidence
    ]
    return [f"  {conditions}", *align(rows, indent="    ")]


def _show_figure(evidence: Evidence, name: str) -> str:
    value = getattr(evidence, name)
    if value is None or isinstance(value, str):
        return value or ""
    return f"{100 * value:.{_SHARES[name]}f} %" if name in _SHARES else f"{value:g}"


def _describe_machines(recipe: Recipe) -> str:
    machines = ", ".join(recipe.machines)
    return f"{recipe.nodes}x {machines}" if recipe.nodes > 1 else machines


def _describe_best(recipe: Recipe) -> str:
    rates = [one for one in recipe.evidence if one.concurrency == 1 and one.tokens_per_s]
    best = max(rates, key=lambda one: one.tokens_per_s or 0, default=None)
    if best is None:
        return "see --recipe" if recipe.evidence else NOT_MEASURED
    workload = "" if best.workload == "not stated" else f", {best.workload}"
    return f"{best.tokens_per_s:g} tok/s{workload}"
