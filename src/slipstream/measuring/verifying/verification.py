"""Both engines get the same requests, one after the other: plain, then drafted.

Both never run at once, a GPU may not hold them. The conditions are those under which speculation
went wrong before: alone, near the end of the context, out of the prefix cache, in batches, under
a grammar, with prompts that end in every place of a cache block, and with tools over three APIs
(`conformance/`). The second engine scores the answers of both by prefill, which drafts nothing
(`regret.py`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from slipstream.engines.vllm import GPU_BLOCK_TOKENS
from slipstream.errors import EngineError, InvalidInputError
from slipstream.measuring.bench import make_request
from slipstream.measuring.client.completions import Answer, Request, ask, ask_all
from slipstream.measuring.client.endpoint import Endpoint, read_served_model
from slipstream.measuring.client.engine_metrics import read_engine_counts, read_metrics
from slipstream.measuring.engine_start import steer_start
from slipstream.measuring.verifying.certificate import ArmName, Condition, Failure, Findings
from slipstream.measuring.verifying.conformance.asking import ask_plain, ask_requests
from slipstream.measuring.verifying.conformance.judging import CallComparison
from slipstream.measuring.verifying.regret import (
    FAILED,
    PINNED,
    Answers,
    ArmAnswers,
    Given,
    find_tolerance,
    list_profiles,
    read_leading,
    score_all,
    shrink,
    sum_up,
)
from slipstream.measuring.verifying.sampling_check import (
    LEADING,
    SamplingCheck,
    Tokens,
    choose_prompt,
    compare_samples,
    list_sampled_requests,
)
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.supervision.engine_process import is_healthy, run_engine

ALONE_PROMPTS = 8
LONG_PROMPTS = 2
LONGEST_TOKENS = 32768
LENGTHS = 128
SHORT_ANSWER = 8
SAMPLES = 400
SHORTEST = 40
REPORTS_PER_LOAD = 5

# Where one of these is set, the likeliest token is not always the one to emit.
BENDING = frozenset(
    ("response_format", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty")
)

_BLOCK = re.compile(r'cache_config_info\{(?:.*,)?block_size="(\d+)"')
_DTYPE = re.compile(r"\bdtype=torch\.(\w+)")


class Running(NamedTuple):
    """A running engine, and its dtype."""

    url: str
    dtype: str


class RequestLoad(NamedTuple):
    """Requests, and their concurrency."""

    requests: Sequence[Request]
    concurrency: int


class SequenceLimits(NamedTuple):
    """The longest sequence of an engine, and the size of its cache blocks."""

    context: int
    block: int


Arm = TypeVar("Arm", bound=str)
OpenArm = Callable[[ArmName], AbstractContextManager[Running]]
Loads = dict[Condition, RequestLoad]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The requests to both arms; `say` receives progress lines."""

    workload: Workload
    concurrency: int
    thinking: bool | None
    seed: int
    reasoning: bool = False
    samples: int = SAMPLES
    progress: Callable[[str], None]

    def run(self, open_arm: OpenArm) -> Findings:
        """Send the requests to one arm, then the other, and return the findings."""
        free, bound = split_requests(self.workload, self.thinking)
        with open_arm("plain") as engine:
            loads, plain = self._begin(engine.url, free, bound)
            rest = {name: load for name, load in loads.items() if name not in plain}
            plain |= self._ask_all(engine.url, "plain", rest)
            answers = list(plain["lengths"].values())[:SHORTEST]
            prompt = choose_prompt(answers, read_leading(engine.url, answers, LEADING))
            plain_samples = self._sample(engine.url, "plain", prompt)
            calls = ask_plain(engine.url, self._count("plain, tools"), reasoning=self.reasoning)
        with open_arm("drafted") as engine:
            drafted = self._ask_all(engine.url, "drafted", loads)
            drafted_samples = self._sample(engine.url, "drafted", prompt)
            sampling = compare_samples(
                plain_samples, drafted_samples, prompt=prompt, seed=self.seed
            )
            report = self._count("drafted, tools")
            drafted_calls = ask_requests(engine.url, calls.requests, report)
            given: dict[ArmName, Given] = {"plain": plain, "drafted": drafted}
            compare_calls = partial(CallComparison, engine.url, calls, drafted_calls)
            return self._conclude(engine, loads, given, sampling, compare_calls)

    def _begin(
        self, url: str, free: Sequence[Request], bound: Sequence[Request]
    ) -> tuple[Loads, Given]:
        """Send a few prompts alone, and derive the other requests from their texts."""
        number = min(ALONE_PROMPTS, len(free))
        alone = RequestLoad([free[at * len(free) // number] for at in range(number)], 1)
        first = self._ask_all(url, "plain", {"alone": alone})
        texts = [(*one.prompt_ids, *one.token_ids) for one in first["alone"].values()]
        limits = read_limits(url)
        long = make_long_requests(texts, limits, alone.requests[0].max_tokens)
        loads: Loads = {
            "alone": alone,
            "long": RequestLoad(long, 1),
            "cached": RequestLoad([*alone.requests, *long], 1),
            "batched": RequestLoad(free, self.concurrency),
            "constrained": RequestLoad(bound, self.concurrency),
            "lengths": RequestLoad(make_length_requests(texts, limits), self.concurrency),
        }
        return {name: load for name, load in loads.items() if load.requests}, first

    def _conclude(
        self,
        engine: Running,
        loads: Loads,
        given: dict[ArmName, Given],
        sampling: SamplingCheck,
        compare_calls: Callable[[float], CallComparison],
    ) -> Findings:
        counts = read_engine_counts(Endpoint(engine.url))
        answers = [one for arm in given.values() for load in arm.values() for one in load.values()]
        profiles = score_all(engine.url, answers, self._count("scored by prefill"))
        plain, drafted = (list_profiles(arm, profiles) for arm in given.values())
        tolerance = find_tolerance(engine.dtype, plain)
        pairs = ArmAnswers(given, profiles, tolerance.gap)
        return Findings(
            tolerance=tolerance,
            checks=tuple(pairs.list_checks()),
            regrets=(
                sum_up("plain", plain, tolerance.gap),
                sum_up("drafted", drafted, tolerance.gap),
            ),
            sampling=sampling,
            calls=compare_calls(tolerance.gap).check(),
            counts=counts,
            failure=self._find_failure(engine.url, loads, pairs),
        )

    def _find_failure(self, url: str, loads: Loads, pairs: ArmAnswers) -> Failure | None:
        """Return the fault with the shortest prompt, shortened further if possible."""
        found = min(pairs.list_faults(), key=lambda one: len(one.answer.prompt_ids), default=None)
        if found is None:
            return None
        prompt, tried = found.answer.prompt_ids, found.condition != "constrained"
        requests = {one.prompt_id: one for one in loads[found.condition].requests}
        max_tokens = requests[found.prompt_id].max_tokens
        self.progress(
            f"a fault in {found.prompt_id} ({len(prompt)} tokens); looking for a shorter prompt"
        )
        shorter = shrink(url, prompt, max_tokens=max_tokens, gap=pairs.gap) if tried else None
        return Failure(
            condition=found.condition,
            prompt_id=found.prompt_id,
            position=found.position,
            gap=found.gap,
            max_tokens=max_tokens,
            reproduced=shorter is not None if tried else None,
            prompt_ids=shorter or prompt,
        )

    def _ask_all(self, url: str, arm: ArmName, loads: Loads) -> Given:
        return {name: self._ask(url, arm, name, load) for name, load in loads.items()}

    def _ask(self, url: str, arm: ArmName, name: str, load: RequestLoad) -> Answers:
        report, done = self._count(f"{arm}, {name}"), count(1)

        def fail(fault: EngineError) -> Answer:
            """Let it fail: under a grammar vLLM answers a wrong token with 500, and lives."""
            if arm == "plain" or not is_healthy(url):
                raise fault
            return FAILED

        answers = ask_all(
            url,
            load.requests,
            ask,
            concurrency=load.concurrency,
            on_answer=lambda *_: report(next(done), len(load.requests)),
            on_failure=fail,
        )
        names = [request.prompt_id for request in load.requests]
        return dict(zip(names, answers, strict=True))

    def _sample(self, url: str, arm: ArmName, prompt: Tokens) -> list[Tokens]:
        turn = 0 if arm == "plain" else 1
        requests = list_sampled_requests(prompt, self.samples, seed=self.seed, turn=turn)
        answers = self._ask(url, arm, "sampled", RequestLoad(requests, self.concurrency))
        return [answer.token_ids for answer in answers.values()]

    def _count(self, label: str) -> Callable[[int, int], None]:
        def report(done: int, of: int) -> None:
            if done * REPORTS_PER_LOAD // of > (done - 1) * REPORTS_PER_LOAD // of:
                self.progress(f"{label}: {done} of {of}")

        return report


def split_requests(
    workload: Workload, thinking: bool | None
) -> tuple[list[Request], list[Request]]:
    """Return greedy requests, those with a grammar or a penalty apart."""
    bent = [prompt for prompt in workload.prompts if _is_bent(prompt)]
    free = [prompt for prompt in workload.prompts if prompt not in bent]
    if not free:
        raise InvalidInputError(
            "all prompts have a grammar or a penalty; prompts without are needed, too",
            hint="add others: --workload prose FILE",
        )

    def make(prompt: Prompt) -> Request:
        return make_request(prompt, thinking, **{**PINNED, **prompt.extra, "temperature": 0.0})

    return list(map(make, free)), list(map(make, bent))


def _is_bent(prompt: Prompt) -> bool:
    forced = prompt.extra.get("tool_choice") not in (None, "none", "auto")
    return forced or not BENDING.isdisjoint(prompt.extra)


def make_long_requests(
    texts: Sequence[Tokens], limits: SequenceLimits, max_tokens: int
) -> list[Request]:
    """Fill the context with texts, each time beginning with another that the cache may hold.

    One token is left for the scoring. EOS does not end an answer here: it is to reach the end.
    """
    size = min(limits.context, LONGEST_TOKENS) - max_tokens - 1
    return [
        Request(
            prompt_id=f"long-{number}",
            prompt_ids=tuple(islice(cycle(chain(*texts[number:], *texts[:number])), size)),
            max_tokens=max_tokens,
            extra={**PINNED, "ignore_eos": True},
        )
        for number in range(min(LONG_PROMPTS, len(texts)))
    ]


def make_length_requests(texts: Sequence[Tokens], limits: SequenceLimits) -> list[Request]:
    """Return prompts of every length up to a cache block, or the last ones of a large block."""
    last = min(limits.block, limits.context - SHORT_ANSWER - 1)
    return [
        Request(
            prompt_id=f"length-{length}",
            prompt_ids=tuple(islice(cycle(chain(*texts)), length, 2 * length)),
            max_tokens=SHORT_ANSWER,
            extra=PINNED,
        )
        for length in range(max(1, last - LENGTHS + 1), last + 1)
    ]


def read_limits(url: str) -> SequenceLimits:
    _, context = read_served_model(Endpoint(url))
    if context is None:
        raise EngineError(f"{url} does not report its context", hint="look into the engine's log")
    block = _BLOCK.search(read_metrics(Endpoint(url)))
    return SequenceLimits(context, int(block[1]) if block else GPU_BLOCK_TOKENS)


def start_in_turn(
    plans: Mapping[Arm, LaunchPlan],
    *,
    logs: Path,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
) -> Callable[[Arm], AbstractContextManager[Running]]:
    """Start the engine of an arm when it is its turn, and end it after."""

    @contextmanager
    def open_arm(name: Arm) -> Iterator[Running]:
        log = logs / f"{name}.log"
        progress(f"{name}: the engine starts")
        plan = plans[name]
        if plan.speculation is not None:
            plan = steer_start(plan, log)
        with run_engine(plan, log=log, environment=environment) as url:
            dtype = _DTYPE.search(log.read_text(errors="replace"))
            yield Running(url, dtype[1] if dtype else "bfloat16")

    return open_arm
