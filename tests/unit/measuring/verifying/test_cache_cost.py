"""What a quantized cache costs, by two toys one after the other and by made-up profiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from slipstream.measuring.client.completions import Request
from slipstream.measuring.verifying.cache_cost import (
    CacheArm,
    CachedText,
    CacheVerification,
    CostEstimate,
    KindCost,
    conclude,
    estimate,
)
from slipstream.measuring.verifying.regret import Profile
from slipstream.measuring.verifying.verification import Running
from slipstream.steering.drafts import Drafts
from tests.unit.measuring.verifying.toy_engine import ToyEngine, blur, run_toy


def make_profile(*regrets: float) -> Profile:
    return Profile(chosen=tuple(-1 - one for one in regrets), best=(-1.0,) * len(regrets))


def count_wrong(profile: Profile) -> float:
    return sum(regret > 0 for regret in profile.regrets)


def test_the_engine_with_the_plain_cache_judges_what_both_wrote() -> None:
    engines: dict[CacheArm, ToyEngine] = {"quantized": ToyEngine(choose=blur), "plain": ToyEngine()}

    @contextmanager
    def open_cache(name: CacheArm) -> Iterator[Running]:
        with run_toy(engines[name]) as url:
            yield Running(url, "float32")

    requests = [
        Request(prompt_id=f"p{at}", kind=kind, prompt_ids=(1, 2 + at), max_tokens=12)
        for kind in ("code", "prose")
        for at in range(4)
    ]
    said: list[str] = []
    verification = CacheVerification(requests=requests, concurrency=2, progress=said.append)
    costs = verification.run(open_cache)
    assert [one.kind for one in costs] == ["code", "prose", "all"]
    assert costs[-1].prompt_tokens == 2
    assert costs[-1].quantized.best < costs[-1].quantized.tokens
    assert costs[-1].plain.best == costs[-1].plain.tokens
    judged = {
        name: [b for b in one.bodies if "prompt_logprobs" in b] for name, one in engines.items()
    }
    assert not judged["quantized"]
    assert judged["plain"]
    assert "quantized, code: 4 answers" in said


def test_equal_texts_cost_nothing_and_one_prompt_has_no_interval() -> None:
    pairs = [(make_profile(0, 0.2), make_profile(0, 0.2))] * 5
    same = estimate(pairs, count_wrong)
    assert (same.value, same.error, same.is_seen) == (0.0, 0.0, False)
    alone = estimate([(make_profile(1, 1), make_profile(0))], count_wrong)
    assert (alone.value, alone.error, alone.is_seen) == (1.0, None, False)
    assert alone.show(100) == "100.0 (one prompt has no interval)"


def test_the_interval_holds_the_true_cost_about_as_often_as_it_says() -> None:
    """Prompts differ in how much they lose and in length, as real ones do."""
    chance, true, held, tries = Random(3), 0.05, 0, 400

    def write(share: float) -> Profile:
        tokens = chance.randint(20, 60)
        return make_profile(*(float(chance.random() < share) for _ in range(tokens)))

    for _ in range(tries):
        shares = [max(0.0, chance.gauss(0.1, 0.04)) for _ in range(16)]
        found = estimate([(write(one + true), write(one)) for one in shares], count_wrong)
        assert found.error is not None
        held += abs(found.value - true) <= found.error
    assert 0.92 <= held / tries <= 0.98


def make_cost(*, worst: float = 0.1, tokens: int = 100, accepted: int = 0) -> KindCost:
    drafts = Drafts(drafts=50, drafted=100, accepted=(accepted,)) if accepted else Drafts()
    text = CachedText(tokens=tokens, best=90, regret=0.01, worst=worst, drafts=drafts)
    return KindCost(
        kind="all",
        prompts=8,
        prompt_tokens=200,
        quantized=text,
        plain=text,
        lost=CostEstimate(value=0.031, error=0.012),
        regret=CostEstimate(value=0.02, error=0.03),
    )


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (make_cost(tokens=0), "generated no text"),
        (make_cost(worst=1.3), "even with the target's own cache"),
    ],
)
def test_what_cannot_be_told_does_not_pass(cost: KindCost, words: str) -> None:
    passed, sentence = conclude("fp8", cost)
    assert not passed
    assert sentence.startswith("Cannot tell: ")
    assert words in sentence


def test_the_sentence_has_both_costs_with_intervals_and_the_tokens_per_step() -> None:
    passed, sentence = conclude("turboquant_3bit_nc", make_cost(accepted=45))
    assert passed
    assert "costs 3.1 (1.9 to 4.3) of 100 tokens" in sentence
    assert "0.0200 (-0.0100 to 0.0500) in a token's log-probability" in sentence
    assert sentence.endswith("Tokens per step: 1.90, and 1.90 with the target's own cache.")
    assert "per step" not in conclude("fp8", make_cost())[1]
