"""How the target itself scores answers: by prefill, where nothing is drafted.

One request per answer returns the log-probability of each emitted token and of the best one.
Their difference is the token's regret: 0 for greedy decoding, but for ties that rounding decides.
vLLM reads nothing from its prefix cache for such a request. `ArmAnswers` compares answers to the
same prompts: where they differ, and whether at a tie.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

import httpx

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer, Request, ask, ask_all
from slipstream.measuring.client.endpoint import Endpoint, call
from slipstream.measuring.verifying.certificate import (
    AnswerCheck,
    ArmName,
    Condition,
    Regret,
    Side,
    Tolerance,
)
from slipstream.measuring.verifying.sampling_check import Leading

SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
ROUNDING_OF_LOGARITHMS = 0.001
TIMES_PLAIN = 2
LARGEST_TIE = 1.0
TRIES = 12
# Some models bring a penalty along that the engine would apply by itself.
PINNED = {"repetition_penalty": 1.0}

Key = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens of a prompt and of its answer."""
Answers = dict[str, Answer]
"""By the id of the prompt."""
Given = dict[Condition, Answers]

FAILED = Answer(prompt_ids=(), token_ids=(), finish_reason="failed")
"""In the place of an answer that only the engine with drafts failed to give."""


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
        return next((at for at, regret in enumerate(self.regrets) if regret > gap), None)


def key_of(answer: Answer) -> Key:
    """Return an answer's key, by its tokens: equal ones are scored once."""
    return answer.prompt_ids, answer.token_ids


def score_all(
    endpoint: Endpoint | str,
    answers: Iterable[Answer],
    report: Callable[[int, int], None] = lambda *_: None,
) -> dict[Key, Profile]:
    """Have a server score each different answer, one by one, since the logits take memory."""
    keys, done = list(dict.fromkeys(map(key_of, answers))), count(1)
    profiles = ask_all(
        endpoint, keys, score_answer, on_answer=lambda *_: report(next(done), len(keys))
    )
    return dict(zip(keys, profiles, strict=True))


def read_leading(url: str, answers: Sequence[Answer], number: int) -> list[Leading]:
    """Return the likeliest tokens at every position of some answers."""
    return ask_all(url, list(map(key_of, answers)), partial(_look, number=number))


async def score_answer(client: httpx.AsyncClient, key: Key, model: str) -> Profile:
    places = await _look(client, key, model, number=1) if key[1] else []
    return Profile(
        chosen=tuple(place[token] for place, token in zip(places, key[1], strict=True)),
        best=tuple(max(place.values()) for place in places),
    )


async def _look(client: httpx.AsyncClient, key: Key, model: str, *, number: int) -> Leading:
    """Return the log-probabilities of an answer's tokens, and in each place of the likeliest."""
    prompt, tokens = key
    body = {
        "model": model,
        "prompt": [*prompt, *tokens],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": number,
    }
    document = await call(client, "POST", "/v1/completions", body)
    try:
        places = document["choices"][0]["prompt_logprobs"][len(prompt) :]
        return [
            {int(token): float(one["logprob"]) for token, one in place.items()} for place in places
        ]
    except (LookupError, TypeError, AttributeError) as fault:
        raise EngineError(
            f"{client.base_url} does not return the log-probabilities of a prompt",
            hint="use a vLLM server that was started without --max-logprobs",
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

    def fails(tried: tuple[int, ...]) -> bool:
        request = Request(prompt_ids=tried, max_tokens=max_tokens, extra=PINNED)
        (profile,) = ask_all(url, list(map(key_of, ask_all(url, [request], ask))), score_answer)
        return profile.find_fault(gap) is not None

    if not fails(prompt):
        return None
    shortest, cut = prompt, len(prompt) // 2
    for _ in range(TRIES - 1):
        if cut == 0:
            break
        if fails(shortest[cut:]):
            shortest = shortest[cut:]
            cut = len(shortest) // 2
        else:
            cut //= 2
    return shortest


def _find_worst(profiles: Sequence[Profile]) -> float:
    return max((regret for profile in profiles for regret in profile.regrets), default=0.0)


class AnswerDifference(NamedTuple):
    """Where two answers differ, and how much likelier one token is; None if one ends or fails."""

    position: int
    gap: float | None


class TokenFault(NamedTuple):
    """A prompt for which a drafted answer has a token that is no tie."""

    condition: Condition
    prompt_id: str
    answer: Answer
    position: int
    gap: float | None


def list_profiles(given: Given, profiles: Mapping[Key, Profile]) -> list[Profile]:
    """Return the profiles of an arm's answers, without those whose best token may be barred."""
    return [
        profiles[key_of(answer)]
        for condition, answers in given.items()
        if condition != "constrained"
        for answer in answers.values()
    ]


@dataclass(frozen=True, slots=True)
class ArmAnswers:
    """The answers of both arms, the target's scores, and the gap up to which tokens are tied."""

    given: Mapping[ArmName, Given]
    profiles: Mapping[Key, Profile]
    gap: float

    def list_checks(self) -> list[AnswerCheck]:
        """Compare the arms with each other, and each against itself under other conditions."""
        conditions = self.given["plain"]
        sides: list[tuple[Side, Side]] = [(("plain", one), ("drafted", one)) for one in conditions]
        arms: tuple[ArmName, ...] = ("drafted", "plain")
        again: tuple[Condition, ...] = ("cached", "batched")
        sides += [((arm, "alone"), (arm, other)) for arm in arms for other in again]
        return [self._check(left, right) for left, right in sides]

    def list_faults(self) -> Iterator[TokenFault]:
        """Find the answers with drafts that are at fault, by the target or else by their twin."""
        for condition, answers in self.given["drafted"].items():
            for name, answer in answers.items():
                profile = self.profiles[key_of(answer)]
                at = None if condition == "constrained" else profile.find_fault(self.gap)
                if at is not None:
                    yield TokenFault(condition, name, answer, at, profile.regrets[at])
                    continue
                twin = self.given["plain"][condition][name]
                found = find_difference(twin, answer, self.profiles)
                if found is not None and not self._is_tie(found):
                    yield TokenFault(condition, name, twin, *found)

    def _check(self, left: Side, right: Side) -> AnswerCheck:
        ours, theirs = self.given[left[0]][left[1]], self.given[right[0]][right[1]]
        if right[1] == "cached":
            ours = self.given[left[0]]["long"] | ours
        shared = [name for name in theirs if name in ours]
        found = [find_difference(ours[name], theirs[name], self.profiles) for name in shared]
        differences = [one for one in found if one is not None]
        ties = sum(map(self._is_tie, differences))
        return AnswerCheck(
            left=left,
            right=right,
            prompts=len(shared),
            equal=len(shared) - len(differences),
            ties=ties,
            faults=len(differences) - ties,
            worst_gap=max((one.gap for one in differences if one.gap is not None), default=None),
            earliest=min((one.position for one in differences), default=None),
        )

    def _is_tie(self, difference: AnswerDifference) -> bool:
        return difference.gap is not None and difference.gap <= self.gap


def find_difference(
    left: Answer, right: Answer, profiles: Mapping[Key, Profile]
) -> AnswerDifference | None:
    """Return where two answers to the same prompt part, None if they do not."""
    if left is FAILED or right is FAILED:
        return None if left is right else AnswerDifference(0, None)
    if left.prompt_ids != right.prompt_ids:
        raise EngineError(
            "the engines made different tokens of the same prompt",
            hint="use a chat template that does not depend on the time",
        )
    if left.token_ids == right.token_ids:
        return None
    pairs = zip(left.token_ids, right.token_ids, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return AnswerDifference(min(len(left.token_ids), len(right.token_ids)), None)
    likely = [profiles[key_of(answer)].chosen[at] for answer in (left, right)]
    return AnswerDifference(at, abs(likely[0] - likely[1]))
