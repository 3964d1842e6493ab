"""The engine's counters on /metrics: drafts, prefix cache, preemptions, queue.

For engines that do not tell a request its drafts, and for what no request is told. vLLM counts
drafts; SGLang has a gauge of its latest tokens per step, and calls a preemption a retraction.
"""

import asyncio
from operator import sub
from typing import Any

from slipstream.engines.prometheus import list_accepted, parse_metrics, read_figures
from slipstream.errors import EngineError
from slipstream.measuring.client.endpoint import Endpoint, open_client, send
from slipstream.records import Record
from slipstream.steering.drafts import Drafts

_COUNTERS = (
    *("prompt_tokens", "output_tokens", "cache_queries", "cache_hits", "preemptions"),
    *("drafts", "drafted", "accepted"),
)


class EngineCounts(Record):
    """The engine's counts since its start or `since` a point; None is not reported.

    The cache is counted in tokens. What runs, waits and was drafted latest is as of the moment.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cache_queries: int | None = None
    cache_hits: int | None = None
    preemptions: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] = ()
    running: int | None = None
    waiting: int | None = None
    latest_tokens_per_step: float | None = None

    @property
    def draft_counts(self) -> Drafts:
        """Return the drafts alone; accepted tokens without a position have one more, the last.

        vLLM counts as many positions as it was started with, and a copied draft may be longer.
        """
        accepted = self.accepted_by_position
        if (rest := (self.accepted or 0) - sum(accepted)) > 0 or not accepted:
            accepted = (*accepted, max(0, rest))
        return Drafts(drafts=self.drafts or 0, drafted=self.drafted or 0, accepted=accepted)

    @property
    def tokens_per_step(self) -> float | None:
        """Return the tokens that a step made, with the one that is not drafted."""
        return self.draft_counts.tokens_per_step or self.latest_tokens_per_step

    @property
    def cache_hit_share(self) -> float | None:
        if not self.cache_queries or self.cache_hits is None:
            return None
        return self.cache_hits / self.cache_queries

    def since(self, before: "EngineCounts") -> "EngineCounts":
        counts = {
            name: now - (getattr(before, name) or 0)
            for name in _COUNTERS
            if (now := getattr(self, name)) is not None
        }
        earlier = before.accepted_by_position or (0,) * len(self.accepted_by_position)
        positions = tuple(map(sub, self.accepted_by_position, earlier))
        other = len(earlier) != len(self.accepted_by_position)
        if other or min((*counts.values(), *positions), default=0) < 0:
            raise EngineError(
                "the engine was restarted while its counters were read",
                hint="check the server's log for the reason, then measure again",
            )
        return self.model_copy(update={**counts, "accepted_by_position": positions})


def read_engine_counts(endpoint: Endpoint) -> EngineCounts:
    """Read a server's counters; all None where it has none, or is no engine that we know."""
    return parse_engine_counts(read_metrics(endpoint))


def read_metrics(endpoint: Endpoint) -> str:
    """Read what a server tells Prometheus, nothing if it tells nothing."""

    async def read() -> str:
        async with open_client(endpoint) as client:
            answer = await send(client, "GET", "/metrics")
            return answer.text if answer.is_success else ""

    return asyncio.run(read())


def parse_engine_counts(text: str) -> EngineCounts:
    """Parse Prometheus' text, adding up what an engine's parts report one by one."""
    samples = list(parse_metrics(text))
    figures: dict[str, Any] = {
        figure: value
        for figure, value in read_figures(samples).items()
        if figure in EngineCounts.model_fields
    }
    return EngineCounts(**figures | {"accepted_by_position": list_accepted(samples)})
