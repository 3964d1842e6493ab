"""The plan as it is served: from copies on this disk, behind the gate, at a known port."""

import json
from collections.abc import Callable
from pathlib import Path

from slipstream.planning.plan import Decision, LaunchPlan
from slipstream.serving.gate_file import GATE_CLASS, GATE_VARIABLE, GateSettings
from slipstream.serving.run import RunFolder, Terms
from slipstream.serving.weights_lock import LocalModel

PORT = 8000
PATCHES_VARIABLE = "SLIPSTREAM_PATCHES"

_DRAFTER = "--speculative-config.model"
_REVISIONS = ("--revision", "--tokenizer-revision", "--speculative-config.revision")

Obtain = Callable[[str, str | None], LocalModel]


def localize(plan: LaunchPlan, obtain: Obtain) -> LaunchPlan:
    """Have both models on this disk, and keep the engine off the network."""
    here = _find_value(plan, "--model") or plan.target
    target = obtain(here, _find_value(plan, "--revision"))
    changes = {"--model": target.folder}
    if plan.drafter is not None:
        here = _find_value(plan, _DRAFTER) or plan.drafter
        drafter = obtain(here, _find_value(plan, "--speculative-config.revision"))
        changes[_DRAFTER] = drafter.folder
    decisions = [
        _point_at(decision, changes)
        for decision in plan.decisions
        if decision.flag not in _REVISIONS
    ]
    name = plan.target if target.commit else target.folder.name
    named = _decide("--served-model-name", name, "what clients call it, wherever its files lie")
    return _add(
        plan.model_copy(update={"decisions": tuple(decisions)}),
        decisions=[named],
        environment=[
            _decide("HF_HUB_OFFLINE", "1", "every file is here, and checked"),
            _decide("VLLM_NO_USAGE_STATS", "1", "the engine would report its use to vLLM's makers"),
        ],
    )


def listen_at(plan: LaunchPlan, host: str | None, port: int | None) -> LaunchPlan:
    """Have the engine listen where the user says."""
    asked = {"--host": host, "--port": None if port is None else str(port)}
    taken = {flag: value for flag, value in asked.items() if value is not None}
    kept = [decision for decision in plan.decisions if decision.flag not in taken]
    new = [
        Decision(flag=flag, value=value, source="user", because="asked for")
        for flag, value in taken.items()
    ]
    return plan.model_copy(update={"decisions": (*kept, *new)})


def put_behind_gate(plan: LaunchPlan, folder: RunFolder) -> LaunchPlan:
    """Have every request judged inside the API server, and the patches applied."""
    kept = tuple(one for one in plan.environment if one.flag != GATE_VARIABLE)
    plan = plan.model_copy(update={"environment": kept})
    environment = [_decide(GATE_VARIABLE, str(folder.gate), "the gate's settings; no key is in it")]
    if plan.patches:
        environment.append(
            _decide(PATCHES_VARIABLE, ",".join(plan.patches), "0.32.0 needs them for this plan")
        )
    decisions = [_decide("--middleware", GATE_CLASS, "vLLM's own key check leaves routes open")]
    if plan.find("--uds") is None:
        decisions.append(_decide("--port", str(PORT), "vLLM's usual one; --port names another"))
    return _add(plan, decisions=decisions, environment=environment)


def describe_gate(
    plan: LaunchPlan, terms: Terms, folder: RunFolder, probe_sha256: str
) -> GateSettings:
    """Write down what the gate must know."""
    return GateSettings(
        host=_find_value(plan, "--uds") or _find_value(plan, "--host") or "",
        keys_file=terms.keys_file,
        probe_sha256=probe_sha256,
        state_file=folder.gate_state,
        accounting_folder=folder.accounting,
        speculation=plan.drafter is not None,
        text_only=not _takes_media(plan),
        recording=terms.recording,
    )


def _takes_media(plan: LaunchPlan) -> bool:
    """Say whether the user lets pictures and the like in, by vLLM's own setting."""
    try:
        limits = json.loads(_find_value(plan, "--limit-mm-per-prompt") or "{}")
    except ValueError:
        return False
    return isinstance(limits, dict) and any(limits.values())


def _find_value(plan: LaunchPlan, flag: str) -> str | None:
    decision = plan.find(flag)
    return decision.value if decision else None


def _point_at(decision: Decision, changes: dict[str, Path]) -> Decision:
    """Put a folder in the place of a model's name, also where it is within JSON."""
    if decision.flag in changes:
        value = str(changes[decision.flag])
    elif decision.flag == "--speculative-config" and _DRAFTER in changes:
        value = json.dumps(json.loads(decision.value or "{}") | {"model": str(changes[_DRAFTER])})
    else:
        return decision
    return decision.model_copy(update={"value": value})


def _add(plan: LaunchPlan, *, decisions: list[Decision], environment: list[Decision]) -> LaunchPlan:
    """Add decisions that nobody has taken yet."""
    return plan.model_copy(
        update={
            "decisions": (*plan.decisions, *(new for new in decisions if not plan.find(new.flag))),
            "environment": (
                *plan.environment,
                *(new for new in environment if not plan.find(new.flag)),
            ),
        }
    )


def _decide(flag: str, value: str, because: str) -> Decision:
    return Decision(flag=flag, value=value, source="default", because=because)
