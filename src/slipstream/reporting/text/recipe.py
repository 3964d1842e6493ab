"""Recipes as text: the list, and one with its evidence, each figure with its source."""

from slipstream.recipes.recipe import Evidence, Recipe
from slipstream.reporting.tables import align

NOT_MEASURED = "not measured"


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
        return NOT_MEASURED if not recipe.evidence else "see --show"
    load = f" at {best.concurrency} users" if best.concurrency else ""
    return f"{best.tokens_per_s:g} tok/s, {best.workload}{load} ({best.by})"
