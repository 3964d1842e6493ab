"""What the user asks for; None is 'decide for me'."""

from typing import Literal

from slipstream.planning.plan import Source
from slipstream.records import Record

Goal = Literal["latency", "throughput", "capacity"]


class Wishes(Record):
    """The user's part of a plan, with where each wish was spoken if not on the command line."""

    context: int | None = None
    users: int | None = None
    goal: Goal = "latency"
    draft_length: int | None = None
    speculation: bool = True
    batched_tokens: int | None = None
    memory_utilization: float | None = None
    attention_backend: str | None = None
    served_name: str | None = None
    kv_dtype: str | None = None
    raw: tuple[str, ...] = ()
    from_environment: tuple[str, ...] = ()

    def source_of(self, wish: str) -> Source:
        """Say where a wish was spoken."""
        return "environment" if wish in self.from_environment else "user"
