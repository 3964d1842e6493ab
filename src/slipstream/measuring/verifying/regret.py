"""What the target itself makes of an answer's tokens, asked by prefill, where nothing is drafted.

One request an answer gives, at each place, the log-probability of the token that was emitted
and of the best one. Their difference is the token's regret: 0 for greedy decoding, but for ties
that rounding decides. vLLM reads nothing from its prefix cache for such a request.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import httpx

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer, Request, ask
from slipstream.measuring.client.endpoint import Endpoint, call, open_client, read_model
from slipstream.measuring.verifying.certificate import ArmName, Regret, Tolerance
from slipstream.measuring.verifying.sampling_check import Leading

SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
ROUNDING_OF_LOGARITHMS = 0.001
TIMES_PLAIN = 2
LARGEST_TIE = 1.0
TRIES = 12
# Some models bring a penalty along that the engine would apply by itself.
PINNED = {"repetition_penalty": 1.0}

Key = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Profile:
    """The log-probabilities of an answer's tokens, and of the best token in each place."""

    chosen: tuple[float, ...]
    best: tuple[float, ...]

    @property
    def regrets(self) -> tuple[float, ...]:
        """Return by how much each token is less likely than the best."""
        return tuple(best - chosen for best, chosen in zip(self.best, self.chosen, strict=True))

    def find_fault(self, gap: float) -> int | None:
        """Return the first place where the token is no tie with the best."""
        return next((at for at, regret in enumerate(self.regrets) if regret > gap), None)


def key_of(answer: Answer) -> Key:
    """Return an answer's key, by its tokens: equal ones are judged once."""
    return answer.prompt_ids, answer.token_ids


def judge_all(
    url: str, answers: Iterable[Answer], report: Callable[[int, int], None]
) -> dict[Key, Profile]:
    """Have a server judge each different answer, one by one, since the logits take memory."""
    keys = list(dict.fromkeys(map(key_of, answers)))

    async def run() -> dict[Key, Profile]:
        profiles = {}
        async with open_client(Endpoint(url)) as client:
            model = await read_model(client)
            for key in keys:
                profiles[key] = await _judge(client, key, model)
                report(len(profiles), len(keys))
        return profiles

    return asyncio.run(run())


def read_leading(url: str, answers: Sequence[Answer], count: int) -> list[Leading]:
    """Return the likeliest tokens at every position of some answers."""

    async def run() -> list[Leading]:
        async with open_client(Endpoint(url)) as client:
            model = await read_model(client)
            return [await _look(client, key_of(answer), model, count) for answer in answers]

    return asyncio.run(run())


async def _judge(client: httpx.AsyncClient, key: Key, model: str) -> Profile:
    places = await _look(client, key, model, 1) if key[1] else []
    return Profile(
        chosen=tuple(place[token] for place, token in zip(places, key[1], strict=True)),
        best=tuple(max(place.values()) for place in places),
    )


async def _look(client: httpx.AsyncClient, key: Key, model: str, count: int) -> Leading:
    """Return the log-probabilities of an answer's tokens, and in each place of the likeliest."""
    prompt, tokens = key
    body = {
        "model": model,
        "prompt": [*prompt, *tokens],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": count,
    }
    told = await call(client, "POST", "/v1/completions", body)
    try:
        places = told["choices"][0]["prompt_logprobs"][len(prompt) :]
        return [
            {int(token): float(one["logprob"]) for token, one in place.items()} for place in places
        ]
    except (LookupError, TypeError, AttributeError) as fault:
        raise EngineError(
            f"{client.base_url} does not tell the log-probabilities of a prompt",
            hint="ask a vLLM server that was started without --max-logprobs",
        ) from fault


def find_tolerance(dtype: str, plain: Sequence[Profile]) -> Tolerance:
    """Return which gaps are ties: those that rounding explains, or that plain decoding shows too.

    The logits of leading tokens are mostly below 32, where those of bfloat16 lie 1/8 apart, and
    rounding can move each of two by a step. Twice the worst of plain decoding is beyond what
    chance does to as many tokens; past a factor of e in probability nothing is a tie.
    """
    bits = SIGNIFICAND_BITS.get(dtype, SIGNIFICAND_BITS["bfloat16"])
    steps = 2 * 2 ** (5 - bits) + ROUNDING_OF_LOGARITHMS
    worst = _find_worst(plain)
    if TIMES_PLAIN * worst <= steps:
        because = f"two steps of {dtype} logits below 32"
        return Tolerance(gap=steps, dtype=dtype, because=because)
    because = f"{TIMES_PLAIN} times the worst token of plain decoding, {worst:.3f} below the best"
    return Tolerance(gap=min(TIMES_PLAIN * worst, LARGEST_TIE), dtype=dtype, because=because)


def sum_up(arm: ArmName, profiles: Sequence[Profile], gap: float) -> Regret:
    """Count an arm's tokens by how they compare with the best."""
    regrets = [regret for profile in profiles for regret in profile.regrets]
    best = sum(regret <= 0 for regret in regrets)
    faults = sum(regret > gap for regret in regrets)
    return Regret(
        arm=arm,
        answers=len(profiles),
        tokens=len(regrets),
        best=best,
        ties=len(regrets) - best - faults,
        faults=faults,
        worst=_find_worst(profiles),
    )


def shrink(
    url: str, prompt: tuple[int, ...], *, max_tokens: int, gap: float
) -> tuple[int, ...] | None:
    """Find a shorter prompt after which greedy decoding still fails; None if it does not again.

    Cuts from the left: half of what is left while that fails, then less, a dozen tries in all.
    """

    async def run() -> tuple[int, ...] | None:
        async with open_client(Endpoint(url)) as client:
            model = await read_model(client)

            async def fails(tried: tuple[int, ...]) -> bool:
                request = Request(prompt_ids=tried, max_tokens=max_tokens, extra=PINNED)
                answer = await ask(client, request, model=model)
                profile = await _judge(client, key_of(answer), model)
                return profile.find_fault(gap) is not None

            if not await fails(prompt):
                return None
            shortest, cut = prompt, len(prompt) // 2
            for _ in range(TRIES - 1):
                if cut == 0:
                    break
                if await fails(shortest[cut:]):
                    shortest = shortest[cut:]
                    cut = len(shortest) // 2
                else:
                    cut //= 2
            return shortest

    return asyncio.run(run())


def _find_worst(profiles: Sequence[Profile]) -> float:
    return max((regret for profile in profiles for regret in profile.regrets), default=0.0)
