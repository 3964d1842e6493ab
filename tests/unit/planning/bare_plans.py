"""A plan of nothing but what a test names, in the engine's own words."""

from slipstream.checkpoints.pairing import Fault
from slipstream.planning.plan import LaunchPlan, MemoryBudget
from slipstream.planning.settings import Choice, EngineSettings
from slipstream.planning.settings.options import make_options

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
    options = make_options(drafter=drafter, engine=words)
    given = options.engine
    speculation = given.drafting.change(method=given.drafting.method or choose("dflash"))
    return LaunchPlan(
        target=target,
        options=options,
        machine=None,
        capability=None,
        recipe=None,
        settings=EngineSettings.model_validate(
            {
                **dict(given),
                "model": given.model or choose(target),
                "speculation": dict(speculation) if given.speculation else None,
            }
        ),
        environment={name: choose(value) for name, value in (environment or {}).items()},
        memory=UNKNOWN,
        warnings=(),
        refusals=refusals,
    )


def choose(value: str) -> Choice[str]:
    return Choice(value, "default", "test")
