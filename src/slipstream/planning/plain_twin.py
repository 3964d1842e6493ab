"""The same plan without drafts: what speculation is held against, and what is left without it."""

from slipstream.planning.plan import LaunchPlan

# vLLM refuses to report the drafts of requests where there are none.
_SPECULATION = ("--speculative-config", "--spec-", "--per-request-spec-decode-metrics")


def without_drafts(plan: LaunchPlan) -> LaunchPlan:
    """Take a plan's speculation out, however it was asked for, and leave all else as it is."""
    kept = tuple(
        decision
        for decision in plan.decisions
        if not decision.flag.replace("_", "-").startswith(_SPECULATION)
    )
    return plan.model_copy(update={"decisions": kept, "drafter": None})
