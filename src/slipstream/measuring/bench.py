"""`BenchReport`: a server measured by kind of prompt and concurrency, with its conditions."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from statistics import fmean
from typing import Any, Literal

from pydantic import AwareDatetime

from slipstream.errors import EngineError
from slipstream.hardware import Host
from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import EngineCounts, read_engine_counts
from slipstream.measuring.client.load import (
    draw_arrivals,
    run_closed_loop,
    run_open_loop,
    run_steady_loop,
)
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.client.streaming import OnTokens
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.measuring.tasks import TaskFigures, describe_tasks
from slipstream.measuring.tool_calls import check_call
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record
from slipstream.steering.drafts import Drafts
from slipstream.steering.percentiles import Percentiles, rank

WARM_UP_ROUNDS = 8
WARM_UP_PROMPTS = 6
FLAT_ROUNDS = 3
FLAT_WITHIN = 1.15
# Besides the first request of a place, which only fills it: three or more in all.
COUNTED_PER_PLACE = 2
SALT_CHARACTERS = 128

PrefixCache = Literal["cold", "shared"]
ToolChoice = Literal["auto", "named", "none"]


class Load(Record):
    """What was counted of one kind at one concurrency beside its requests.

    `seconds` is the time by the clock where requests arrived by it; None if all places were busy
    all through.
    """

    kind: str
    concurrency: int
    counts: EngineCounts
    memory_bytes: int | None = None
    seconds: float | None = None


class BenchCell(Record):
    """One kind of prompt at one concurrency.

    `seconds` is the time that the requests took, divided by the places that they shared: all of
    them were busy all through. `per_token` is the time of each token after the first.
    `by_position` is the share of drafts whose first, second, ... token was accepted. `tasks` has
    what only tasks of several turns have.
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
    total: Percentiles | None
    tokens_per_step: float | None
    acceptance_rate: float | None
    by_position: tuple[float, ...]
    cache_hit_share: float | None
    preemptions: int | None
    memory_bytes: int | None
    tasks: TaskFigures | None = None


class BenchWarmUp(Record):
    """The warm-up: its rounds, the time per token in each, and whether it became stable."""

    rounds: int
    seconds_per_token: tuple[float, ...]
    flat: bool


class Conditions(Record):
    """Everything that a figure depends on, and the command that repeats it.

    With `arrivals_per_second`, requests arrived by the clock, and a kind's concurrency is the most
    that were in flight. `tool_choice` is how the turns of tasks asked for calls, None without any.
    """

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
    arrivals_per_second: float | None = None
    tool_choice: ToolChoice | None = None


class BenchReport(Record):
    """The figures of a server; samples are kept without their texts.

    `machine` is what else the server's machine did meanwhile, None if it could not be watched.
    """

    schema_version: Literal[3] = 3
    conditions: Conditions
    warm_up: BenchWarmUp
    cells: tuple[BenchCell, ...]
    samples: tuple[Sample, ...]
    machine: MachineLoad | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """How a server is measured: prompts, concurrencies and the use of the prefix cache.

    Every load is steady: each prompt or task is asked once, and again until each place served
    `COUNTED_PER_PLACE` of them that count. `tell` gets each cell when it is done, `tick` every
    request that counts, `on_tokens` the tokens of each chunk. `tool_choice` is how the turns of
    tasks ask for calls.

    With `arrivals_per_second`, each kind's prompts instead arrive by a Poisson process, one load,
    whatever is in flight; the seconds of a cell are then those of the clock.
    """

    workload: Workload
    concurrencies: Sequence[int]
    thinking: bool | None = None
    arrivals_per_second: float | None = None
    seed: int = 0
    prefix_cache: PrefixCache = "cold"
    tool_choice: ToolChoice = "none"
    measure_memory: Callable[[], int | None] = lambda: None
    on_cell: Callable[[BenchCell], None] = lambda _: None
    tick: Callable[[str, int, int, int], None] = lambda *_: None
    on_tokens: OnTokens | None = None
    salt: str = field(default_factory=lambda: f"{time.time_ns():x}")

    def warm_up(self, endpoint: Endpoint) -> BenchWarmUp:
        """Send other prompts at the same concurrency until the time per token is stable."""
        prompts = self.workload.warm_up[:WARM_UP_PROMPTS]
        times: list[float] = []
        while prompts and len(times) < WARM_UP_ROUNDS and not is_flat(times):
            requests = [self._make_request(one, f"warm {len(times)}") for one in prompts]
            samples = run_closed_loop(endpoint, requests, concurrency=max(self.concurrencies))
            of_samples = (one.seconds_per_token for one in samples)
            speeds = [seconds for seconds in of_samples if seconds is not None]
            if not speeds:
                raise EngineError(
                    "the warm-up requests failed",
                    details=tuple(dict.fromkeys(one.error or "no tokens" for one in samples)),
                    hint="look into the server's log",
                )
            times.append(fmean(speeds))
        return BenchWarmUp(rounds=len(times), seconds_per_token=tuple(times), flat=is_flat(times))

    def measure(self, endpoint: Endpoint) -> tuple[list[Load], list[Sample]]:
        """Measure every kind at every concurrency, one load after the other."""
        loads: list[Load] = []
        kept: list[Sample] = []
        by_clock = self.arrivals_per_second is not None
        for concurrency in (0,) if by_clock else self.concurrencies:
            for kind in self.workload.kinds:
                before = read_engine_counts(endpoint)
                if self.arrivals_per_second is None:
                    samples = self._run_load(endpoint, kind, concurrency)
                else:
                    samples = self._run_arrivals(endpoint, kind, self.arrivals_per_second)
                load = Load(
                    kind=kind,
                    concurrency=samples[0].concurrency,
                    counts=read_engine_counts(endpoint).since(before),
                    memory_bytes=self.measure_memory(),
                    seconds=max(one.began_at + one.seconds for one in samples)
                    if by_clock
                    else None,
                )
                self.on_cell(summarize(load, samples))
                loads.append(load)
                kept += [_strip(sample) for sample in samples]
        return loads, kept

    def _run_arrivals(self, endpoint: Endpoint, kind: str, rate: float) -> list[Sample]:
        """Send a kind's prompts as they arrive; its concurrency is the most in flight."""
        prompts = [prompt for prompt in self.workload.prompts if prompt.kind == kind]
        seed = self.seed + self.workload.kinds.index(kind)
        samples = run_open_loop(
            endpoint,
            [self._make_request(prompt, kind) for prompt in prompts],
            arrivals=draw_arrivals(len(prompts), rate=rate, seed=seed),
        )
        most = max(sample.concurrency for sample in samples)
        return [sample.model_copy(update={"concurrency": most}) for sample in samples]

    def _run_load(self, endpoint: Endpoint, kind: str, concurrency: int) -> list[Sample]:
        units = self.workload.list_units(kind)
        counted = max(len(units), COUNTED_PER_PLACE * concurrency if concurrency > 1 else 0)
        requests = sum(len(units[number % len(units)]) for number in range(counted))
        done = 0

        def make_requests(number: int) -> list[Request]:
            again, at = divmod(number, len(units))
            load = f"{kind} {concurrency} {again}"
            return [self._make_request(prompt, load) for prompt in units[at]]

        def tick(_: Sample) -> None:
            nonlocal done
            done += 1
            self.tick(kind, concurrency, done, requests)

        samples = run_steady_loop(
            endpoint,
            make_requests,
            counted=counted,
            concurrency=concurrency,
            on_sample=tick,
            on_tokens=self.on_tokens,
        )
        prompts = {prompt.id: prompt for unit in units for prompt in unit}
        return [self._read_turn(sample, prompts[sample.prompt_id]) for sample in samples]

    def _read_turn(self, sample: Sample, prompt: Prompt) -> Sample:
        """Add to the sample which turn of which task it is, and what became of its tool call."""
        if prompt.task is None:
            return sample
        call = None
        if sample.error is None and prompt.expected_tool and self.tool_choice != "none":
            expected = prompt.expected_tool if self.tool_choice == "named" else None
            call = check_call(sample.calls, expected, prompt.extra["tools"])
        return sample.model_copy(update={"task": prompt.task, "turn": prompt.turn, "call": call})

    def _make_request(self, prompt: Prompt, load: str) -> Request:
        more: dict[str, Any] = {}
        if self.prefix_cache == "cold":
            more["cache_salt"] = make_salt(self.salt, load, prompt.unit)
        if prompt.task is not None:
            more["tool_choice"] = self._choose_tool(prompt.expected_tool)
        if prompt.task is not None and self.tool_choice == "named":
            # vLLM's parsers with a structural tag hold only strict tools to their schemas.
            more["tools"] = [
                {**tool, "function": {**tool["function"], "strict": True}}
                for tool in prompt.extra["tools"]
            ]
        return make_request(prompt, self.thinking, **more)

    def _choose_tool(self, expected: str | None) -> str | dict[str, Any]:
        """Return the tool choice: the model's as for agents, the expected tool by name, or none."""
        if self.tool_choice == "named" and expected is not None:
            return {"type": "function", "function": {"name": expected}}
        return "auto" if self.tool_choice == "auto" else "none"


def make_request(prompt: Prompt, thinking: bool | None, **more: Any) -> Request:
    """Return a prompt's request; `more` adds to its fields or replaces them."""
    extra = {**prompt.extra, **more}
    if thinking is not None and prompt.messages:
        extra["chat_template_kwargs"] = {"enable_thinking": thinking}
    return Request(
        prompt_id=prompt.id,
        kind=prompt.kind,
        messages=prompt.messages,
        prompt_ids=prompt.prompt_ids,
        max_tokens=prompt.max_tokens,
        temperature=extra.pop("temperature", 0.0),
        extra=extra,
    )


def summarize(load: Load, samples: Sequence[Sample]) -> BenchCell:
    """Return a load's figures; drafts are the requests' own, or else what the engine counted."""
    good = [sample for sample in samples if sample.error is None]
    seconds = load.seconds
    if seconds is None:
        seconds = sum(sample.seconds for sample in samples) / load.concurrency
    tokens = sum(sample.output_tokens for sample in good)
    drafts = Drafts.total(sample.draft_counts for sample in good)
    later = tokens - len(good)
    if not drafts.drafts:
        drafts, later = load.counts.draft_counts, (load.counts.output_tokens or 0) - len(samples)
    return BenchCell(
        kind=load.kind,
        concurrency=load.concurrency,
        requests=len(samples),
        failed=len(samples) - len(good),
        seconds=seconds,
        output_tokens=tokens,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        first_token=rank([one.first_token_seconds for one in good]),
        per_token=rank([one.seconds_per_token for one in good]),
        total=rank([one.seconds for one in good]),
        tokens_per_step=_count_tokens_per_step(drafts, later),
        acceptance_rate=drafts.acceptance_rate,
        by_position=drafts.by_position,
        cache_hit_share=load.counts.cache_hit_share,
        preemptions=load.counts.preemptions,
        memory_bytes=load.memory_bytes,
        tasks=describe_tasks(samples),
    )


def _count_tokens_per_step(drafts: Drafts, later: int) -> float | None:
    """Return a step's tokens, whether it had a draft or not.

    `later` are the tokens after the first ones, which their prompts' steps made.
    """
    if not drafts.drafts:
        return None
    accepted = sum(drafts.accepted)
    return 1 + accepted / max(drafts.drafts, later - accepted)


def list_cells(loads: Sequence[Load], samples: Sequence[Sample]) -> list[BenchCell]:
    by_load = split_loads(samples)
    return [summarize(load, by_load[load.kind, load.concurrency]) for load in loads]


def split_loads(samples: Sequence[Sample]) -> dict[tuple[str, int], list[Sample]]:
    """Sort samples by kind and concurrency."""
    loads: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        loads.setdefault((sample.kind, sample.concurrency), []).append(sample)
    return loads


def make_salt(*parts: str) -> str:
    """Return a cache salt of these parts that the gate accepts: short, printable ASCII."""
    salt = " ".join(parts)
    plain = salt.isascii() and salt.isprintable() and len(salt) <= SALT_CHARACTERS
    return salt if plain else sha256(salt.encode()).hexdigest()


def is_flat(times: Sequence[float]) -> bool:
    last = times[-FLAT_ROUNDS:]
    return len(last) == FLAT_ROUNDS and max(last) <= FLAT_WITHIN * min(last)


def _strip(sample: Sample) -> Sample:
    return sample.model_copy(update={"text": "", "token_ids": (), "calls": ()})
