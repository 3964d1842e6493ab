"""How `vllm-router` is started: every setting with its reason, and the command.

The router listens on loopback only. It knows no key and has open control routes, it cannot show a
certificate to a worker, and it asks workers for a load that vLLM does not have: what stands before
and behind it (`haproxy.py`) makes up for all of that. None of its control routes is used: a worker
added through them gets default health checks.
"""

from collections.abc import Iterable

from pydantic import JsonValue

from slipstream.fleet.plan import RouterPlan
from slipstream.fleet.record import Policy
from slipstream.planning.settings import Choice

VERSION = "0.1.16"
PROGRAM = "vllm-router"
LOOPBACK = "127.0.0.1"
# A body passes the gate up to 2 MiB, and with pictures up to 20 MiB more, a third larger in base64.
LARGEST_BODY = 32 << 20
# Ports beside the one for clients, all of them on loopback.
_ROUTER, _METRICS, _FIRST_LEG = 1, 2, 10
_POLICIES: dict[Policy, tuple[str, str]] = {
    "power_of_two": ("power_of_two", "the less loaded of two replicas; loads are read each second"),
    "session": ("consistent_hash", "requests of one X-Session-ID find their prefix cache again"),
}


def decide_settings(policy: Policy) -> dict[str, Choice[JsonValue]]:
    """Choose the router's settings, as version 0.1.16 was measured and read."""
    name, because = _POLICIES[policy]
    chosen: dict[str, tuple[JsonValue, str]] = {
        "--policy": (name, because),
        "--worker-startup-check-interval": (1, "also how often loads are read; default 30 s"),
        "--health-check-endpoint": ("/readyz", "/health stays 200 while a server drains"),
        "--health-check-interval-secs": (2, "at the default of 60 s a dead replica is used on"),
        "--health-check-timeout-secs": (1, "the front answers from what it knows"),
        "--health-failure-threshold": (1, "the front has already looked twice"),
        "--health-success-threshold": (1, "the front has already looked"),
        "--request-timeout-secs": (14_400, "it ends healthy streams, so it must never be reached"),
        "--disable-retries": (True, "it repeats requests that may have ended an engine elsewhere"),
        "--disable-circuit-breaker": (
            True,
            "ten refusals of a full server close it to everybody for a minute",
        ),
        "--max-concurrent-requests": (4096, "seats are the gates' to give"),
        "--queue-size": (0, "its queue answered 15 of 20 requests with 408 after 0.26 s"),
        "--max-payload-size": (LARGEST_BODY, "what a gate takes at most; default 512 MiB"),
        "--log-level": ("warning", "by default every choice is a line"),
    }
    return {flag: Choice(value, "measured", because) for flag, (value, because) in chosen.items()}


def render_command(router: RouterPlan) -> list[str]:
    """Return the router's command, without the folder of the program."""
    workers = [f"http://{LOOPBACK}:{find_leg_port(router, one.group)}" for one in router.groups]
    places = {
        "--host": LOOPBACK,
        "--port": str(find_router_port(router)),
        "--prometheus-host": LOOPBACK,
        "--prometheus-port": str(router.port + _METRICS),
    }
    settings = [(flag, choice.value) for flag, choice in router.settings.items()]
    return [PROGRAM, *_render({**places, **dict(settings)}.items()), "--worker-urls", *workers]


def find_router_port(router: RouterPlan) -> int:
    """Return the loopback port of the router itself."""
    return router.port + _ROUTER


def find_leg_port(router: RouterPlan, group: str) -> int:
    """Return the loopback port that leads to a group."""
    names = [one.group for one in router.groups]
    return router.port + _FIRST_LEG + names.index(group)


def _render(flags: Iterable[tuple[str, JsonValue]]) -> list[str]:
    words: list[str] = []
    for flag, value in flags:
        if value is not False:
            words += [flag] if value is True else [flag, str(value)]
    return words
