"""Whether drafts are copied from a request's own tokens, and where that is possible.

On runner V1 our scheduler copies, on V2 a patch does.
"""

from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import Choice

VARIABLE = "SLIPSTREAM_COPY"
LONGEST = 31
# With others a draft token is judged by the drafter's own probability, and a copied one has none.
_JUDGED_BY_TOKEN = {
    "draft_sample_method": (None, "greedy"),
    "rejection_sample_method": (None, "standard"),
}


def decide_copies(inputs: PlanInputs) -> dict[str, Choice[str]]:
    """Copy where it was measured to pay, which is on a CPU, and where the user asks for it."""
    wanted = inputs.options.copy_drafts
    if wanted is False or find_copy_obstacle(inputs) is not None:
        return {}
    if wanted:
        return {VARIABLE: Choice(str(LONGEST), "user", "requested")}
    if inputs.runner != "V1":
        return {}
    why = "text that a request repeats is drafted from its own tokens, up to this many per step"
    return {VARIABLE: Choice(str(LONGEST), "default", f"{why}; --no-copy turns it off")}


def find_copy_obstacle(inputs: PlanInputs) -> str | None:
    """Return why no draft can be copied, None if it can."""
    given, family = inputs.fixed, inputs.draft.family if inputs.draft else None
    if family != "dflash":
        return f"drafts are copied with dflash only, and this plan has {family or 'no drafter'}"
    for key, possible in _JUDGED_BY_TOKEN.items():
        choice = given.drafting.rest.get(key)
        if choice is not None and choice.value not in possible:
            return f"{key} {choice.value} needs the drafter's probability of every draft token"
    if inputs.runner == "V1" and "--scheduler-cls" in given.rest:
        return "the scheduler that copies is replaced by --scheduler-cls"
    ahead = given.rest.get("--async-scheduling")
    if inputs.runner == "V1" and ahead is not None and ahead.value:
        return "with --async-scheduling a step is planned before its drafts are known"
    return None
