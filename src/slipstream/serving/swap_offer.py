"""Whether the drafter of a served plan can be swapped, and the settings that it takes."""

from pathlib import Path

from pydantic import JsonValue

from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.run import Run
from slipstream.serving.swaps import Trial

TRANSFER = "--weight-transfer-config"
# As `slipstream.vllm_plugin` has them, which nothing imports.
BACKEND = "slipstream-file"
VARIABLE = "SLIPSTREAM_SWAPS"
# The file transfer was written for its loader of weights.
ENGINE = "0.32."
_MOE_BACKEND = "--moe-backend"
# These refuse to start beside a weight transfer.
_MOE_WITHOUT_TRANSFER = ("flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm")
_SAFETENSORS = (None, "auto", "safetensors")


def offer_swaps(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with swaps enabled: the gate can load another DFlash drafter from disk."""
    settings = plan.settings
    load_format = settings.load_format.value if settings.load_format else None
    experts = settings.rest.get(_MOE_BACKEND)
    fits = (
        plan.speculation is not None
        # The other ranks of a group would start again with their own.
        and plan.group is None
        and plan.speculation.method.value == "dflash"
        and plan.drafter is not None
        and plan.engine_version.startswith(ENGINE)
        and load_format in _SAFETENSORS
        and (experts is None or experts.value not in _MOE_WITHOUT_TRANSFER)
        and TRANSFER not in settings.rest
    )
    if not fits:
        return plan
    because = "the drafter can be replaced without a restart: slipstream swap"
    backend: Choice[JsonValue] = Choice({"backend": BACKEND}, "default", because)
    plan = plan.change(rest={**settings.rest, TRANSFER: backend})
    return plan.change_variables({VARIABLE: Choice("1", "default", because)})


def withdraw_swaps(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with swaps disabled, since without a gate none can be ordered."""
    if not takes_swaps(plan):
        return plan
    rest = {flag: one for flag, one in plan.settings.rest.items() if flag != TRANSFER}
    return plan.change(rest=rest).change_variables({VARIABLE: None})


def takes_swaps(plan: LaunchPlan) -> bool:
    """Return whether an engine of this plan can swap its drafter."""
    transfer = plan.settings.rest.get(TRANSFER)
    asked = transfer is not None and transfer.value == {"backend": BACKEND}
    return asked and plan.drafter is not None


def with_drafter(plan: LaunchPlan, folder: Path, because: str) -> LaunchPlan:
    """Return the plan with another drafter, whose files are in a folder."""
    assert plan.speculation is not None
    drafter = Choice(str(folder), "user", because)
    changed = plan.speculation.model_copy(update={"drafter": drafter, "revision": None})
    return plan.change(speculation=changed)


def leave_trial(run: Run) -> tuple[LaunchPlan, Trial | None]:
    """Return a run's plan and trial for its successor: a drafter still on trial is left behind."""
    plan, trial = run.plan, run.trial
    if trial is None or trial.state != "running":
        return plan, trial
    message = "the supervisor ended during the trial"
    if plan.drafter == str(trial.folder):
        plan = with_drafter(plan, trial.before.folder, message)
    return plan, trial.model_copy(update={"state": "rolled back", "message": message})
