"""The engine's scheduler as our subclass, which writes the ledger and chooses the draft length."""

from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice

SCHEDULER = "--scheduler-cls"
STEERED = "slipstream.vllm_plugin.steering.scheduler.make"
VARIABLE = "SLIPSTREAM_DRAFT_LENGTH"
# Whose drafts may be of any length in any step; the others' stay as planned.
_ANY_LENGTH = ("dflash",)


def steer_engine(plan: LaunchPlan, *, steered: bool) -> LaunchPlan:
    """Return the plan with our scheduler, which keeps the ledger and adapts the draft length."""
    rest = plan.settings.rest
    if SCHEDULER in rest and rest[SCHEDULER].value != STEERED:
        return plan
    because = "it keeps a ledger of requests, and what a step costs decides the draft length"
    plan = plan.change(rest={**rest, SCHEDULER: Choice(STEERED, "default", because)})
    speculation = plan.settings.speculation
    if speculation is None or (steered and speculation.method.value in _ANY_LENGTH):
        return plan.change_variables({VARIABLE: None})
    fixed: Choice[str] = Choice("fixed", "user", "asked for")
    if steered:
        fixed = Choice("fixed", "default", f"{speculation.method.value} drafts one length")
    return plan.change_variables({VARIABLE: fixed})


def is_followed(plan: LaunchPlan) -> bool:
    """Return whether the engine keeps a ledger."""
    choice = plan.settings.rest.get(SCHEDULER)
    return choice is not None and choice.value == STEERED
