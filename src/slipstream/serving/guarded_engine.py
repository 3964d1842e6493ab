"""Engine settings that keep the gate's rules inside the engine, too."""

from pydantic import JsonValue

from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.access.gate_file import GateMedia

GRAMMAR_CACHE_MIB = "64"
MEDIA_HOSTS = "--allowed-media-domains"
# vLLM fetches from every host if its list is empty, and RFC 2606 gives this name to nobody.
NO_HOST = "none.invalid"


def takes_pictures(plan: LaunchPlan) -> bool:
    """Return whether the plan takes anything but text."""
    media = plan.settings.media_limits
    return media is not None and any(media.value.values())


def guard_engine(plan: LaunchPlan, media: GateMedia) -> LaunchPlan:
    """Bound what the engine keeps of requests, and the hosts that it fetches pictures from."""
    plan = plan.change_variables(
        {
            "VLLM_ENABLE_RESPONSES_API_STORE": Choice(
                "0", "default", "vLLM keeps stored responses in memory and never removes one"
            ),
            "VLLM_XGRAMMAR_CACHE_MB": Choice(
                GRAMMAR_CACHE_MIB, "default", "compiled grammars; vLLM's 512 MiB fill for hours"
            ),
        }
    )
    if not takes_pictures(plan):
        return plan
    rest = plan.settings.rest
    if MEDIA_HOSTS not in rest or rest[MEDIA_HOSTS].source == "default":
        because = "those of the gate's rules; without a list vLLM fetches from every host"
        hosts: Choice[JsonValue] = Choice([*media.hosts] or [NO_HOST], "default", because)
        plan = plan.change(rest={**rest, MEDIA_HOSTS: hosts})
    return plan.change_variables(
        {
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": Choice(
                "0", "default", "a listed host could send the engine on to an inner address"
            ),
            "VLLM_MAX_IMAGE_PIXELS": Choice(
                str(media.pixels), "default", "the gate cannot see the size of what is fetched"
            ),
        }
    )
