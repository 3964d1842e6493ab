"""`BenchReport`: a server measured by kind of prompt and concurrency, with its conditions."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import fmean
from typing import Any, Literal

from pydantic import AwareDatetime

from slipstream.errors import EngineError
from slipstream.hardware import Host
from slipstream.measuring.completions import Request
from slipstream.measuring.endpoint import Endpoint
from slipstream.measuring.engine_metrics import EngineCounts, read_engine_counts
from slipstream.measuring.load import run_closed_loop
from slipstream.measuring.sample import Sample
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record

WARM_UP_ROUNDS = 8
WARM_UP_PROMPTS = 6
FLAT_ROUNDS = 3
FLAT_WITHIN = 1.15

PrefixCache = Literal["cold", "as it is"]


class Percentiles(Record):
    """Seconds, by the share of requests that took no longer."""

    p50: float
    p90: float
    p99: float


class BenchCell(Record):
    """One kind of prompt at one concurrency.

    `per_token` is the time of each token after the first. `by_position` is the share of drafts
    whose first, second, ... token was accepted.
    """

    kind: str
    concurrency: int
    requests: int
    failed: int
    seconds: float
    output_tokens: int
    tokens_per_second: float
    first_token: Percentiles | None
    per_token: Percentiles | None
    whole: Percentiles | None
    tokens_per_step: float | None
    acceptance_rate: float | None
    by_position: tuple[float, ...]
    cache_hit_share: float | None
    preemptions: int | None
    memory_bytes: int | None


class WarmUp(Record):
    """What came before: so many rounds, the time of a token in each, and whether it got flat."""

    rounds: int
    seconds_per_token: tuple[float, ...]
    flat: bool


class Conditions(Record):
    """All that a figure depends on, and the command that makes it again."""

    at: AwareDatetime
    command: str
    model: str
    versions: dict[str, str]
    plan: LaunchPlan | None
    host: Host | None
    workload: str
    workload_sha256: str
    left_out: dict[str, str]
    seed: int
    max_tokens: int | None
    thinking: bool | None
    prefix_cache: PrefixCache
    start_seconds: float | None = None


class BenchReport(Record):
    """A server's figures; the samples are without their texts."""

    schema_version: Literal[1] = 1
    conditions: Conditions
    warm_up: WarmUp
    cells: tuple[BenchCell, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """How a server is measured: what is asked, how much of it at once, and what of the cache.

    Every prompt is asked once a load, and again until there were `requests_a_place` for each of
    those at once. `tell` gets each cell when it is done, `tick` every request.
    """

    workload: Workload
    concurrencies: Sequence[int]
    thinking: bool | None = None
    requests_a_place: int = 0
    prefix_cache: PrefixCache = "cold"
    measure_memory: Callable[[], int | None] = lambda: None
    tell: Callable[[BenchCell], None] = lambda _: None
    tick: Callable[[str, int, int, int], None] = lambda *_: None
    salt: str = field(default_factory=lambda: f"{time.time_ns():x}")

    def warm_up(self, endpoint: Endpoint) -> WarmUp:
        """Ask other prompts, as many at once as will be, until the time of a token is flat."""
        prompts = self.workload.warm_up[:WARM_UP_PROMPTS]
        times: list[float] = []
        while prompts and len(times) < WARM_UP_ROUNDS and not is_flat(times):
            requests = [self._make_request(one, f"warm {len(times)}") for one in prompts]
            samples = run_closed_loop(endpoint, requests, concurrency=max(self.concurrencies))
            speeds = [one.seconds_per_token for one in samples if one.seconds_per_token]
            if not speeds:
                raise EngineError(
                    "the warm-up was not answered",
                    details=tuple(dict.fromkeys(one.error or "no tokens" for one in samples)),
                    hint="look into the server's log",
                )
            times.append(fmean(speeds))
        return WarmUp(rounds=len(times), seconds_per_token=tuple(times), flat=is_flat(times))

    def measure(self, endpoint: Endpoint) -> tuple[list[BenchCell], list[Sample]]:
        """Measure every kind at every concurrency, one load after the other."""
        cells: list[BenchCell] = []
        kept: list[Sample] = []
        for concurrency in self.concurrencies:
            for kind in self.workload.kinds:
                before = read_engine_counts(endpoint)
                samples = self._run_load(endpoint, kind, concurrency)
                counted = read_engine_counts(endpoint).since(before)
                cell = summarize(samples, counted, self.measure_memory())
                self.tell(cell)
                cells.append(cell)
                bare = {"text": "", "token_ids": ()}
                kept += [sample.model_copy(update=bare) for sample in samples]
        return cells, kept

    def _run_load(self, endpoint: Endpoint, kind: str, concurrency: int) -> list[Sample]:
        prompts = [prompt for prompt in self.workload.prompts if prompt.kind == kind]
        count = max(len(prompts), self.requests_a_place * concurrency)
        requests = [
            self._make_request(one, f"{kind} {concurrency} {number // len(prompts)}")
            for number, one in enumerate(islice(cycle(prompts), count))
        ]
        done = 0

        def tick(_: Sample) -> None:
            nonlocal done
            done += 1
            self.tick(kind, concurrency, done, len(requests))

        return run_closed_loop(endpoint, requests, concurrency=concurrency, on_sample=tick)

    def _make_request(self, prompt: Prompt, load: str) -> Request:
        extra: dict[str, Any] = dict(prompt.extra)
        temperature = extra.pop("temperature", 0.0)
        if self.prefix_cache == "cold":
            extra["cache_salt"] = f"{self.salt} {load} {prompt.id}"
        if self.thinking is not None and prompt.messages:
            extra["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return Request(
            prompt_id=prompt.id,
            kind=prompt.kind,
            messages=prompt.messages,
            prompt_ids=prompt.prompt_ids,
            max_tokens=prompt.max_tokens,
            temperature=temperature,
            extra=extra,
        )


def summarize(
    samples: Sequence[Sample], counted: EngineCounts, memory_bytes: int | None
) -> BenchCell:
    """Give one cell's figures; drafts are the requests' own, or else what the engine counted."""
    good = [sample for sample in samples if sample.error is None]
    began = min(sample.began_at for sample in samples)
    seconds = max(sample.began_at + sample.seconds for sample in samples) - began
    tokens = sum(sample.output_tokens for sample in good)
    drafts = _add_drafts(good) or _take_drafts(counted)
    return BenchCell(
        kind=samples[0].kind,
        concurrency=samples[0].concurrency,
        requests=len(samples),
        failed=len(samples) - len(good),
        seconds=seconds,
        output_tokens=tokens,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        first_token=_rank([one.first_token_seconds for one in good]),
        per_token=_rank([one.seconds_per_token for one in good]),
        whole=_rank([one.seconds for one in good]),
        cache_hit_share=counted.cache_hit_share,
        preemptions=counted.preemptions,
        memory_bytes=memory_bytes,
        **drafts,
    )


def is_flat(times: Sequence[float]) -> bool:
    """Say whether the last few differ by little."""
    last = times[-FLAT_ROUNDS:]
    return len(last) == FLAT_ROUNDS and max(last) <= FLAT_WITHIN * min(last)


def _add_drafts(samples: Sequence[Sample]) -> dict[str, Any]:
    drafts = sum(sample.drafts for sample in samples)
    if not drafts:
        return {}
    longest = max(len(sample.accepted_by_position) for sample in samples)
    rows = [sample.accepted_by_position for sample in samples]
    accepted = [sum(row[at] for row in rows if at < len(row)) for at in range(longest)]
    drafted = sum(sample.drafted for sample in samples)
    return _describe_drafts(drafts, drafted, sum(one.accepted for one in samples), accepted)


def _take_drafts(counted: EngineCounts) -> dict[str, Any]:
    return _describe_drafts(
        counted.drafts or 0,
        counted.drafted or 0,
        counted.accepted or 0,
        counted.accepted_by_position,
    )


def _describe_drafts(
    drafts: int, drafted: int, accepted: int, by_position: Sequence[int]
) -> dict[str, Any]:
    return {
        "tokens_per_step": 1 + accepted / drafts if drafts else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "by_position": tuple(count / drafts for count in by_position) if drafts else (),
    }


def _rank(values: Sequence[float | None]) -> Percentiles | None:
    """Take the nearest rank, which is always one that was measured."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    ranks: Mapping[str, float] = {
        name: found[math.ceil(share * len(found)) - 1]
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    return Percentiles(**ranks)
