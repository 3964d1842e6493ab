"""A plan of nothing but what a test names, in the engine's own words."""

from slipstream.checkpoints.pairing import Fault
from slipstream.planning.asked import read_asked
from slipstream.planning.plan import LaunchPlan, MemoryBudget
from slipstream.planning.settings import Choice, EngineSettings, Speculation
from slipstream.planning.wishes import Wishes

UNKNOWN = MemoryBudget(
    device_bytes=None,
    usable_bytes=None,
    items=(),
    kv_bytes_per_token=None,
    bytes_per_sequence=None,
    kv_pool_bytes=None,
    sequences_that_fit=None,
    unknown=(),
)


def bare_plan(
    *words: str,
    target: str = "owner/model",
    drafter: str | None = None,
    environment: dict[str, str] | None = None,
    refusals: tuple[Fault, ...] = (),
) -> LaunchPlan:
    asked = read_asked(Wishes(raw=words))
    parts = dict(asked.speculation)
    if drafter is not None:
        parts.setdefault("drafter", choose(drafter))
        parts.setdefault("method", choose("dflash"))
    return LaunchPlan(
        target=target,
        wishes=Wishes(raw=words),
        machine=None,
        capability=None,
        recipe=None,
        settings=EngineSettings(
            **{"model": choose(target), **asked.settings},
            rest=dict(asked.rest),
            speculation=Speculation(**parts, rest=dict(asked.speculation_rest)) if parts else None,
        ),
        environment={name: choose(value) for name, value in (environment or {}).items()},
        memory=UNKNOWN,
        warnings=(),
        refusals=refusals,
    )


def choose(value: str) -> Choice[str]:
    return Choice(value, "default", "test")
