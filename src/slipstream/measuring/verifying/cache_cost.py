"""`CacheCost`: what a quantized KV cache does to the text, and to drafts.

The engine of a plan writes greedy answers, then the same engine with the target's own cache does,
and scores both by prefill (`regret.py`). The one with the quantized cache could not score:
TurboQuant prefills from exact keys and values, so its cost shows in decoding only.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import fmean
from typing import Literal, NamedTuple

from slipstream.measuring.bench import Conditions
from slipstream.measuring.client.completions import Answer, Request, ask, ask_all
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import read_engine_counts
from slipstream.measuring.verifying.regret import LARGEST_TIE, Key, Profile, key_of, score_all
from slipstream.measuring.verifying.verification import Running
from slipstream.records import Record
from slipstream.steering.drafts import Drafts
from slipstream.steering.step_time import t_quantile

CacheArm = Literal["quantized", "plain"]
OpenCache = Callable[[CacheArm], AbstractContextManager[Running]]
Pair = tuple[Profile, Profile]
"""A prompt's answer from the quantized cache, and from the plain one."""


class CachedText(Record):
    """What one engine wrote, as the engine with the plain cache scores it.

    `best` counts the tokens that are the target's best one; `regret` is by how much a token falls
    short of it in log-probability, on average.
    """

    tokens: int
    best: int
    regret: float
    worst: float
    drafts: Drafts


class CostEstimate(Record):
    """A difference between the two engines with its 95 % interval, unknown of a single prompt."""

    value: float
    error: float | None

    @property
    def is_seen(self) -> bool:
        return self.error is not None and abs(self.value) > self.error

    def show(self, scale: float = 1.0, decimals: int = 1) -> str:
        value = f"{scale * self.value:.{decimals}f}"
        if self.error is None:
            return f"{value} (one prompt has no interval)"
        ends = (scale * (self.value + sign * self.error) for sign in (-1, 1))
        return f"{value} ({' to '.join(f'{end:.{decimals}f}' for end in ends)})"


class KindCost(Record):
    """A kind of prompts, or all: what was written, and the costs of the quantized cache.

    `lost` is the share of tokens that are no longer the best one, `regret` what a token falls
    further short of it.
    """

    kind: str
    prompts: int
    prompt_tokens: float
    quantized: CachedText
    plain: CachedText
    lost: CostEstimate
    regret: CostEstimate


class CacheCost(Record):
    """What the plan's cache costs against the target's own, by kind and, last, for all kinds."""

    schema_version: Literal[1] = 1
    passed: bool
    sentence: str
    kv_dtype: str
    kinds: tuple[KindCost, ...]
    conditions: Conditions
    concurrency: int

    @classmethod
    def make(
        cls, kv_dtype: str, kinds: Sequence[KindCost], conditions: Conditions, concurrency: int
    ) -> "CacheCost":
        passed, sentence = conclude(kv_dtype, kinds[-1])
        return cls(
            passed=passed,
            sentence=sentence,
            kv_dtype=kv_dtype,
            kinds=tuple(kinds),
            conditions=conditions,
            concurrency=concurrency,
        )


class _Written(NamedTuple):
    answers: list[Answer]
    drafts: Drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheVerification:
    """The requests to both engines; `say` receives progress lines."""

    requests: Sequence[Request]
    concurrency: int
    progress: Callable[[str], None]

    def run(self, open_cache: OpenCache) -> list[KindCost]:
        """Have both engines answer, score the answers, and sum up each kind and all of them."""
        kinds: dict[str, list[Request]] = {}
        for request in self.requests:
            kinds.setdefault(request.kind, []).append(request)
        with open_cache("quantized") as engine:
            quantized = self._ask(engine.url, "quantized", kinds)
        with open_cache("plain") as engine:
            plain = self._ask(engine.url, "plain", kinds)
            answers = [
                one for arm in (quantized, plain) for own in arm.values() for one in own.answers
            ]
            self.progress(f"{len(answers)} answers are scored by prefill")
            profiles = score_all(engine.url, answers)
        sum_up = partial(sum_up_kind, profiles=profiles)
        costs = [sum_up(kind, quantized[kind], plain[kind]) for kind in kinds]
        if len(costs) > 1:
            costs.append(sum_up("all", _join(quantized), _join(plain)))
        return costs

    def _ask(
        self, url: str, arm: CacheArm, kinds: Mapping[str, Sequence[Request]]
    ) -> dict[str, _Written]:
        written = {}
        for kind, requests in kinds.items():
            before = read_engine_counts(Endpoint(url))
            answers = ask_all(url, requests, ask, concurrency=self.concurrency)
            counts = read_engine_counts(Endpoint(url)).since(before)
            written[kind] = _Written(answers, counts.draft_counts)
            self.progress(f"{arm}, {kind}: {len(answers)} answers")
        return written


def _join(written: Mapping[str, _Written]) -> _Written:
    return _Written(
        [answer for one in written.values() for answer in one.answers],
        Drafts.total(one.drafts for one in written.values()),
    )


def sum_up_kind(
    kind: str, quantized: _Written, plain: _Written, *, profiles: Mapping[Key, Profile]
) -> KindCost:
    """Return what both engines wrote after the same prompts, and the differences."""
    ours, theirs = (
        [profiles[key_of(answer)] for answer in one.answers] for one in (quantized, plain)
    )
    pairs = list(zip(ours, theirs, strict=True))
    return KindCost(
        kind=kind,
        prompts=len(pairs),
        prompt_tokens=fmean(len(answer.prompt_ids) for answer in plain.answers),
        quantized=_sum_up_text(ours, quantized.drafts),
        plain=_sum_up_text(theirs, plain.drafts),
        lost=estimate(pairs, lambda one: len(one.regrets) - _count_best(one)),
        regret=estimate(pairs, lambda one: sum(one.regrets)),
    )


def _sum_up_text(profiles: Sequence[Profile], drafts: Drafts) -> CachedText:
    regrets = [regret for one in profiles for regret in one.regrets]
    return CachedText(
        tokens=len(regrets),
        best=sum(map(_count_best, profiles)),
        regret=fmean(regrets or [0.0]),
        worst=max(regrets, default=0.0),
        drafts=drafts,
    )


def _count_best(profile: Profile) -> int:
    return sum(regret <= 0 for regret in profile.regrets)


def estimate(pairs: Sequence[Pair], read: Callable[[Profile], float]) -> CostEstimate:
    """Return the difference of a figure per token, with an interval from prompt to prompt.

    Tokens of an answer depend on each other, so prompts count as independent, and tokens do not.
    Each prompt adds to a ratio what it has beyond the ratio's share (the delta method).
    """
    count = len(pairs)
    difference, errors = 0.0, [0.0] * count
    for sign, profiles in zip((1, -1), zip(*pairs, strict=True), strict=True):
        tokens = sum(len(one.regrets) for one in profiles) or 1
        ratio = sum(map(read, profiles)) / tokens
        difference += sign * ratio
        for at, one in enumerate(profiles):
            errors[at] += sign * (read(one) - ratio * len(one.regrets)) / tokens
    if count < 2:
        return CostEstimate(value=difference, error=None)
    spread = sqrt(sum(error**2 for error in errors) * count / (count - 1))
    return CostEstimate(value=difference, error=t_quantile(count - 1) * spread)


def conclude(kv_dtype: str, cost: KindCost) -> tuple[bool, str]:
    """Return whether the cost could be measured, and the sentence that says what it is."""
    quantized, plain = cost.quantized, cost.plain
    if not quantized.tokens or not plain.tokens:
        return False, "Cannot tell: an engine generated no text."
    if plain.worst > LARGEST_TIE:
        return False, (
            f"Cannot tell: even with the target's own cache, tokens are less likely than the "
            f"engine's own best by prefill, up to {plain.worst:.2f}."
        )
    seen = cost.lost.is_seen or cost.regret.is_seen
    found = "costs" if seen else "shows no cost beyond chance:"
    return True, (
        f"A cache in {kv_dtype} {found} {cost.lost.show(100)} of 100 tokens that are no longer the "
        f"target's best one, and {cost.regret.show(decimals=4)} in a token's log-probability "
        f"(95 % intervals; {quantized.tokens:,} tokens after {cost.prompts} prompts of "
        f"{cost.prompt_tokens:,.0f} tokens on average).{_describe_drafts(cost)}"
    )


def _describe_drafts(cost: KindCost) -> str:
    steps = [one.drafts.tokens_per_step for one in (cost.quantized, cost.plain)]
    if None in steps:
        return ""
    return f" Tokens per step: {steps[0]:.2f}, and {steps[1]:.2f} with the target's own cache."
