"""Engine settings that our plugin takes: the gate's rules inside the engine, steering, swaps."""

from pathlib import Path

from pydantic import JsonValue

from slipstream.engines.vllm_tables import is_since
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.planning.settings.draft_lengths import SCHEDULER, STEERED, find_obstacle
from slipstream.planning.settings.draft_lengths import VARIABLE as LENGTH_VARIABLE
from slipstream.planning.settings.patches import VARIABLE as PATCHES_VARIABLE
from slipstream.serving.access.gate_file import GateMedia
from slipstream.serving.run import Run
from slipstream.serving.swaps import ENDED_DURING_TRIAL, SwapTrial

GRAMMAR_CACHE_MIB = "64"
MEDIA_HOSTS = "--allowed-media-domains"
# vLLM fetches from every host if its list is empty, and RFC 2606 gives this name to nobody.
NO_HOST = "none.invalid"
STEERING = "steering"
TRANSFER = "--weight-transfer-config"
WATCHDOG = "--watchdog-config"
HUNG_SECONDS = 30
# As `slipstream.vllm_plugin` has them, which nothing imports.
BACKEND = "slipstream-file"
SWAPS_VARIABLE = "SLIPSTREAM_SWAPS"
# The file transfer was written for their loader of weights.
ENGINES = ("0.32.", "0.33.")
_MOE_BACKEND = "--moe-backend"
# These refuse to start beside a weight transfer.
_MOE_WITHOUT_TRANSFER = ("flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm")
_SAFETENSORS = (None, "auto", "safetensors")


def add_flag(plan: LaunchPlan, flag: str, value: JsonValue, because: str) -> LaunchPlan:
    """Return the plan with a default of ours for a flag of the engine."""
    return plan.change(rest={**plan.settings.rest, flag: Choice(value, "default", because)})


def takes_images(plan: LaunchPlan) -> bool:
    media = plan.settings.media_limits
    return media is not None and any(media.value.values())


def guard_engine(plan: LaunchPlan, media: GateMedia) -> LaunchPlan:
    """Bound what the engine keeps of requests, and the hosts that it fetches images from."""
    stored = "vLLM keeps stored responses in memory and never removes them"
    grammars = "limit for compiled grammars; vLLM's default is 512 MiB"
    plan = plan.change_variables(
        {
            "VLLM_ENABLE_RESPONSES_API_STORE": Choice("0", "default", stored),
            "VLLM_XGRAMMAR_CACHE_MB": Choice(GRAMMAR_CACHE_MIB, "default", grammars),
        }
    )
    if not takes_images(plan):
        return plan
    rest = plan.settings.rest
    if MEDIA_HOSTS not in rest or rest[MEDIA_HOSTS].source == "default":
        because = "from the gate's rules; without a list vLLM fetches from every host"
        plan = add_flag(plan, MEDIA_HOSTS, [*media.hosts] or [NO_HOST], because)
    redirects = "a listed host could redirect the engine to an internal address"
    unseen = "the gate cannot see the size of what is fetched"
    return plan.change_variables(
        {
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": Choice("0", "default", redirects),
            "VLLM_MAX_IMAGE_PIXELS": Choice(str(media.pixels), "default", unseen),
        }
    )


def steer_engine(plan: LaunchPlan, *, steered: bool) -> LaunchPlan:
    """Return the plan with our scheduler, which keeps the ledger and adapts the draft length."""
    rest = plan.settings.rest
    if SCHEDULER in rest and rest[SCHEDULER].value != STEERED:
        return plan
    because = "keeps the ledger of requests and adapts the draft length to the cost of steps"
    plan = add_flag(plan, SCHEDULER, STEERED, because)
    obstacle = find_obstacle(plan.settings)
    if plan.settings.speculation is None or (steered and obstacle is None):
        return plan.change_variables({LENGTH_VARIABLE: None})
    fixed: Choice[str] = Choice("fixed", "user", "requested")
    if steered and obstacle is not None:
        fixed = Choice("fixed", "default", obstacle)
    return plan.change_variables({LENGTH_VARIABLE: fixed})


def keep_stacks(plan: LaunchPlan, folder: Path) -> LaunchPlan:
    """Have vLLM write where every thread stands if a step hangs, before the engine is replaced."""
    if not is_since(plan.engine_version, "0.33") or WATCHDOG in plan.settings.rest:
        return plan
    because = "where each thread stood in a step that hung, in the run's folder"
    return add_flag(plan, WATCHDOG, {"timeout": HUNG_SECONDS, "dump_dir": str(folder)}, because)


def list_parts(plan: LaunchPlan) -> list[str]:
    """List what the plugin is to apply in an engine, by the names under which it reports that."""
    named = plan.environment.get(PATCHES_VARIABLE)
    # All patches are about drafts: without those, vLLM may never import what they change.
    names = named.value.split(",") if named and plan.speculation else []
    patches = [f"patch {name}" for name in names]
    # A rank that follows has no scheduler.
    steers = is_followed(plan) and not (plan.group and plan.group.is_follower)
    return [*patches, STEERING] if steers else patches


def is_followed(plan: LaunchPlan) -> bool:
    choice = plan.settings.rest.get(SCHEDULER)
    return choice is not None and choice.value == STEERED


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
        and plan.engine_version.startswith(ENGINES)
        and load_format in _SAFETENSORS
        and (experts is None or experts.value not in _MOE_WITHOUT_TRANSFER)
        and TRANSFER not in settings.rest
    )
    if not fits:
        return plan
    because = "the drafter can be replaced without a restart: slipstream swap"
    plan = add_flag(plan, TRANSFER, {"backend": BACKEND}, because)
    return plan.change_variables({SWAPS_VARIABLE: Choice("1", "default", because)})


def withdraw_swaps(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with swaps disabled, since without a gate none can be ordered."""
    if not takes_swaps(plan):
        return plan
    rest = {flag: one for flag, one in plan.settings.rest.items() if flag != TRANSFER}
    return plan.change(rest=rest).change_variables({SWAPS_VARIABLE: None})


def takes_swaps(plan: LaunchPlan) -> bool:
    """Return whether an engine of this plan can swap its drafter."""
    transfer = plan.settings.rest.get(TRANSFER)
    is_planned = transfer is not None and transfer.value == {"backend": BACKEND}
    return is_planned and plan.drafter is not None


def with_drafter(plan: LaunchPlan, folder: Path, because: str) -> LaunchPlan:
    assert plan.speculation is not None
    drafter = Choice(str(folder), "user", because)
    changed = plan.speculation.model_copy(update={"drafter": drafter, "revision": None})
    return plan.change(speculation=changed)


def leave_trial(run: Run) -> tuple[LaunchPlan, SwapTrial | None]:
    """Return a run's plan and trial for its successor: a drafter still on trial is left behind."""
    plan, trial = run.plan, run.trial
    if trial is None or trial.state != "running":
        return plan, trial
    message = f"the supervisor {ENDED_DURING_TRIAL}"
    if plan.drafter == str(trial.folder):
        plan = with_drafter(plan, trial.before.folder, message)
    return plan, trial.model_copy(update={"state": "rolled back", "message": message})
