"""The plan as it is served: from local copies, behind the gate, at a known port."""

import ssl
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue

from slipstream.errors import InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import FLAGS, Choice
from slipstream.planning.settings.copies import VARIABLE as COPY_VARIABLE
from slipstream.planning.settings.patches import DFLASH_V2_COPY
from slipstream.serving.access.gate_file import (
    GATE_CLASS,
    GATE_VARIABLE,
    GateRules,
    GateSettings,
    apply_rules,
    is_loopback,
)
from slipstream.serving.plugin_settings import (
    add_flag,
    guard_engine,
    is_followed,
    keep_stacks,
    offer_swaps,
    steer_engine,
    takes_images,
    withdraw_swaps,
)
from slipstream.serving.run import RunFolder, Terms
from slipstream.serving.weights.lock import LocalModel

PORT = 8000
QUEUE = "--max-num-queued-reqs"
QUEUED = 1024
_TOKENIZER_REVISION = "--tokenizer-revision"
_NO_ACCESS_LOG = "--disable-uvicorn-access-log"
_CONSTRAINTS = "--structured-outputs-config"
# These listen beside the API server, where no gate is.
_AROUND_THE_GATE = ("--grpc", "--grpc-port", "--data-parallel-multi-port-external-lb")
_API_PROCESSES = "--api-server-count"
_ACCESS_LOG_FLAGS = {_NO_ACCESS_LOG, "--disable-access-log-for-endpoints"}

Obtain = Callable[[str, str | None], LocalModel]


def localize(plan: LaunchPlan, obtain: Obtain) -> LaunchPlan:
    """Return the plan with local copies of both models, and its engine offline."""
    settings = plan.settings
    target = obtain(settings.model.value, settings.revision.value if settings.revision else None)
    names = settings.served_names or Choice(
        (plan.target if target.commit else target.folder.name,),
        "default",
        "the name that clients use, wherever the files are",
    )
    rest = {flag: one for flag, one in settings.rest.items() if flag != _TOKENIZER_REVISION}
    plan = plan.change(
        model=_point_at(settings.model, target), revision=None, served_names=names, rest=rest
    )
    if (speculation := settings.speculation) is not None and speculation.drafter is not None:
        revision = speculation.revision.value if speculation.revision else None
        drafter = obtain(speculation.drafter.value, revision)
        here = {"drafter": _point_at(speculation.drafter, drafter), "revision": None}
        plan = plan.change(speculation=speculation.model_copy(update=here))
    return plan.change_variables(
        {
            "HF_HUB_OFFLINE": Choice("1", "default", "every file is local and checked"),
            "VLLM_NO_USAGE_STATS": Choice("1", "default", "usage reports to vLLM's makers are off"),
        }
    )


def listen_at(plan: LaunchPlan, host: str | None, port: int | None) -> LaunchPlan:
    chosen = (("host", host), ("port", port))
    return plan.change(
        **{name: Choice(value, "user", "requested") for name, value in chosen if value is not None}
    )


def ask_for_certificates(plan: LaunchPlan, folder: Path) -> LaunchPlan:
    """Have the engine show a fleet's certificate, and take only clients that show one, too."""
    because = f"of {folder}: only machines with a certificate of the same authority may connect"
    flags: dict[str, JsonValue] = {
        "--ssl-certfile": str(folder / "machine.pem"),
        "--ssl-keyfile": str(folder / "machine.pem.key"),
        "--ssl-ca-certs": str(folder / "ca.pem"),
        "--ssl-cert-reqs": int(ssl.CERT_REQUIRED),
        "--enable-ssl-refresh": True,
    }
    chosen = {flag: Choice(value, "user", because) for flag, value in flags.items()}
    return plan.change(rest={**plan.settings.rest, **chosen})


def put_behind_gate(
    plan: LaunchPlan, folder: RunFolder, rules: GateRules | None = None, *, steered: bool = True
) -> LaunchPlan:
    """Return the plan with the gate as outermost middleware of the API server.

    vLLM adds middleware in order, and the last one added is the outermost.
    """
    _require_no_way_around(plan)
    _require_head(plan)
    # `python -m vllm.entrypoints.openai.api_server` ignores it; `vllm serve` would multiply limits.
    if (processes := _find_rest(plan, _API_PROCESSES)) not in (None, 1):
        raise InvalidInputError(
            f"{_API_PROCESSES} {processes}: limits per key are counted in one API process",
            hint=f"leave {_API_PROCESSES} out, or serve several engines behind a proxy",
        )
    planned = plan.settings.middleware
    others = tuple(one for one in planned.value if one != GATE_CLASS) if planned else ()
    because = "vLLM's own key check leaves routes open; the last middleware is the outermost"
    plan = plan.change(middleware=Choice((*others, GATE_CLASS), "default", because))
    if not _ACCESS_LOG_FLAGS & plan.settings.rest.keys():
        because = "one line per request and health check would fill the disk"
        plan = add_flag(plan, _NO_ACCESS_LOG, True, because)
    if _CONSTRAINTS not in plan.settings.rest:
        because = "the gate measures with it; otherwise the first request would choose it for all"
        plan = add_flag(plan, _CONSTRAINTS, {"backend": "xgrammar"}, because)
    plan = _bound_queue(_have_port(plan))
    plan = guard_engine(offer_swaps(plan), (rules or GateRules()).media)
    plan = keep_stacks(steer_engine(plan, steered=steered), folder.path)
    gate = Choice(str(folder.gate), "default", "the gate's settings, without keys")
    return plan.change_variables({GATE_VARIABLE: gate})


def follow_head(plan: LaunchPlan, *, steered: bool = True) -> LaunchPlan:
    """Have a rank run the same engine as the head of its group, and listen for no client."""
    _require_no_way_around(plan)
    because = "the head of its group serves the API"
    plan = plan.change(
        headless=Choice(True, "default", because), host=None, port=None, uds=None, middleware=None
    ).change_variables({GATE_VARIABLE: None})
    return steer_engine(guard_engine(offer_swaps(plan), GateRules().media), steered=steered)


def leave_without_gate(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan without the gate, which serves this machine only."""
    planned = plan.settings.middleware
    others = tuple(one for one in planned.value if one != GATE_CLASS) if planned else ()
    kept = Choice(others, planned.source, planned.because) if planned and others else None
    _require_head(plan)
    plan = _have_port(plan.change(middleware=kept))
    plan = withdraw_swaps(plan.change_variables({GATE_VARIABLE: None}))
    if DFLASH_V2_COPY not in plan.patches:  # Elsewhere it is our scheduler that copies.
        plan = plan.change_variables({COPY_VARIABLE: None})
    address = plan.settings.uds or plan.settings.host
    if not is_loopback(address.value if address else ""):
        raise InvalidInputError(
            f"other machines can reach {(address and address.value) or 'every address'}, "
            "and without the gate nothing protects the server",
            hint="--no-gate needs --bind 127.0.0.1 or -- --uds PATH",
        )
    return plan


def describe_gate(
    plan: LaunchPlan, terms: Terms, folder: RunFolder, probe_sha256: str
) -> GateSettings:
    address = plan.settings.uds or plan.settings.host
    settings = GateSettings(
        host=address.value if address else "",
        keys_file=terms.keys_file,
        served_names=plan.settings.list_served_names(),
        seats=_count_seats(plan),
        context=plan.settings.context.value if plan.settings.context else None,
        priorities=_find_rest(plan, "--scheduling-policy") == "priority",
        probe_sha256=probe_sha256,
        socket=folder.socket,
        access_log=folder.access_log,
        speculation=plan.speculation is not None,
        tags=is_followed(plan),
        generates=_find_rest(plan, "--runner") != "pooling",
        text_only=not takes_images(plan),
        recording=terms.recording,
    )
    rules = terms.gate_rules or GateRules()
    return apply_rules(settings, rules, keys_required=terms.keys_required)


def _require_no_way_around(plan: LaunchPlan) -> None:
    if around := [flag for flag in _AROUND_THE_GATE if _find_rest(plan, flag)]:
        raise InvalidInputError(
            f"{around[0]} makes the engine listen without the gate",
            hint="leave it out, or serve bare vLLM to this machine only: --no-gate",
        )


def _require_head(plan: LaunchPlan) -> None:
    """Refuse an engine that answers nobody, unless it is a rank that its group's head leads."""
    if plan.settings.headless is not None and plan.settings.headless.value:
        raise InvalidInputError(
            f"{FLAGS['headless']} is for the ranks of a group: nothing would serve requests here",
            hint=f"leave {FLAGS['headless']} out; for a plan per rank: slipstream fleet plan",
        )


def _count_seats(plan: LaunchPlan) -> int | None:
    """Count the requests that the engine works on at the same time."""
    settings = plan.settings
    if settings.sequences is None:
        return None
    ranks = settings.data_parallel.value if settings.data_parallel else 1
    return settings.sequences.value * ranks


def _find_rest(plan: LaunchPlan, flag: str) -> JsonValue:
    choice = plan.settings.rest.get(flag)
    return choice.value if choice else None


def _have_port(plan: LaunchPlan) -> LaunchPlan:
    if plan.settings.uds is None and plan.settings.port is None:
        plan = plan.change(port=Choice(PORT, "default", "vLLM's default; --port changes it"))
    return plan


def _bound_queue(plan: LaunchPlan) -> LaunchPlan:
    seats = _count_seats(plan)
    if seats is None or QUEUE in plan.settings.rest:
        return plan
    because = f"{QUEUED} beside its {seats} seats; vLLM's own queue is unbounded"
    return add_flag(plan, QUEUE, seats + QUEUED, because)


def _point_at(name: Choice[str], model: LocalModel) -> Choice[str]:
    return Choice(str(model.folder), name.source, name.because)
