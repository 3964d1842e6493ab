"""The user's wishes for a plan; None leaves a setting to the planner."""

from typing import Any, Literal

from slipstream.engines.vllm_methods import MethodName
from slipstream.planning.settings import Choice, Source
from slipstream.records import Record

Goal = Literal["latency", "throughput", "capacity", "agent"]


class Wishes(Record):
    """The user's part of a plan, and which wishes came from the environment.

    `raw` is what follows `--` on the command line, `extra_arguments` the same of a container's
    EXTRA_ARGS: both are for the engine, and win over the other wishes.
    """

    drafter: str | None = None
    method: MethodName | None = None
    context: int | None = None
    users: int | None = None
    goal: Goal = "latency"
    draft_length: int | None = None
    speculation: bool = True
    thinking: Literal["on", "off"] | None = None
    pictures: bool = False
    batched_tokens: int | None = None
    memory_utilization: float | None = None
    attention_backend: str | None = None
    served_name: str | None = None
    kv_dtype: str | None = None
    raw: tuple[str, ...] = ()
    extra_arguments: tuple[str, ...] = ()
    from_environment: tuple[str, ...] = ()

    def find(self, wish: str) -> Choice[Any] | None:
        """Return a wish as the choice that it is, None if it is left to the planner."""
        value = getattr(self, wish)
        if value is None:
            return None
        source: Source = "environment" if wish in self.from_environment else "user"
        return Choice(value, source, "asked for")
