"""Whether drafts are copied from a request's own tokens, and where that is possible."""

from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import Choice

VARIABLE = "SLIPSTREAM_COPY"
LONGEST = 31
# These change what a draft is compared with, so a copied token is no point mass there.
_POINT_MASSES = {
    "draft_sample_method": (None, "greedy"),
    "rejection_sample_method": (None, "standard"),
}
_COPIES_BY_RUNNER = {"V1": ("dflash",), "V2": ("dflash", "dflash2")}


def decide_copies(inputs: PlanInputs) -> dict[str, Choice[str]]:
    """Copy where it was measured to pay, which is on a CPU, and where the user asks for it."""
    wanted = inputs.options.copy_drafts
    if wanted is False or find_copy_obstacle(inputs) is not None:
        return {}
    if wanted:
        return {VARIABLE: Choice(str(LONGEST), "user", "requested")}
    if inputs.runner != "V1":
        return {}
    why = "text that a request repeats is drafted from its own tokens, up to so many per step"
    return {VARIABLE: Choice(str(LONGEST), "default", f"{why}; --no-copy turns it off")}


def find_copy_obstacle(inputs: PlanInputs) -> str | None:
    """Return why no draft can be copied, None if it can."""
    given, family = inputs.given, inputs.draft.family if inputs.draft else None
    if family not in _COPIES_BY_RUNNER[inputs.runner]:
        return f"drafts are copied beside DFlash only, and this plan drafts with {family or 'none'}"
    for key, possible in _POINT_MASSES.items():
        choice = given.drafting.rest.get(key)
        if choice is not None and choice.value not in possible:
            return f"{key} {choice.value} needs the drafter's probability of every draft token"
    if "--scheduler-cls" in given.rest:
        return "the scheduler that copies is replaced by --scheduler-cls"
    ahead = given.rest.get("--async-scheduling")
    if inputs.runner == "V1" and ahead is not None and ahead.value:
        return "with --async-scheduling a step is planned before its drafts are known"
    return None
