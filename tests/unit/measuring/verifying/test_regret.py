"""Regrets are told from ties by the numbers' own steps, or by what plain decoding shows."""

import pytest

from slipstream.measuring.client.completions import Answer
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.verifying.certificate import Regret
from slipstream.measuring.verifying.regret import Profile, find_tolerance, score_all, shrink, sum_up
from tests.unit.measuring.verifying.toy_engine import SPOILED_ABOVE, Text, ToyEngine, run_toy, spoil


def profile(*regrets: float) -> Profile:
    return Profile(chosen=tuple(-1 - one for one in regrets), best=(-1.0,) * len(regrets))


def answer(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> Answer:
    return Answer(prompt_ids=prompt, token_ids=tokens)


@pytest.mark.parametrize(
    ("dtype", "gap"),
    [("bfloat16", 0.251), ("float16", 0.03225), ("float32", 0.001), ("fp8_new", 0.251)],
)
def test_two_steps_of_a_logit_are_a_tie(dtype: str, gap: float) -> None:
    tolerance = find_tolerance(dtype, [profile(0, 0, gap / 2)])
    assert tolerance.gap == pytest.approx(gap, rel=0.01)
    assert tolerance.because == f"two steps of {dtype} logits below 32"


def test_twice_what_plain_decoding_shows_is_a_tie() -> None:
    tolerance = find_tolerance("bfloat16", [profile(0, 0.1), profile(0.3, 0)])
    assert tolerance.gap == pytest.approx(0.6)
    assert tolerance.because == "2 times the worst token of plain decoding, 0.300 below the best"


def test_nothing_is_a_tie_beyond_a_factor_of_e() -> None:
    assert find_tolerance("bfloat16", [profile(5.0)]).gap == 1.0


def test_tokens_are_counted_as_best_tied_or_at_fault() -> None:
    assert sum_up("drafted", [profile(0, 0.5, 0), profile(1, 3, 1.5)], 1) == Regret(
        arm="drafted", answers=2, tokens=6, best=2, ties=2, faults=2, worst=3
    )
    assert sum_up("plain", [], 0.25).worst == 0


def test_the_first_fault_of_an_answer_is_found() -> None:
    assert profile(0, 0.2, 3, 4).find_fault(0.25) == 2
    assert profile(0, 0.2).find_fault(0.25) is None


def test_equal_answers_are_judged_once_and_the_prompt_not_at_all() -> None:
    engine = ToyEngine()
    greedy = engine.generate([3, 4], {"max_tokens": 3, "temperature": 0})
    wrong = (*greedy[:2], 1)
    counted: list[tuple[int, int]] = []
    with run_toy(engine) as url:
        profiles = score_all(
            Endpoint(url),
            [answer((3, 4), tuple(greedy)), answer((3, 4), wrong), answer((3, 4), tuple(greedy))],
            lambda done, of: counted.append((done, of)),
        )
    assert counted == [(1, 2), (2, 2)]
    assert profiles[(3, 4), tuple(greedy)].regrets == (0, 0, 0)
    assert profiles[(3, 4), wrong].regrets[:2] == (0, 0)
    assert profiles[(3, 4), wrong].regrets[2] > 1


def test_a_prompt_shrinks_while_the_fault_stays() -> None:
    engine = ToyEngine(choose=spoil)
    prompt = tuple(1 + number % 9 for number in range(100))
    with run_toy(engine) as url:
        shortest = shrink(url, prompt, max_tokens=9, gap=0.25)
    assert shortest is not None
    assert shortest == prompt[-len(shortest) :]
    assert SPOILED_ABOVE < len(shortest) <= SPOILED_ABOVE + 3
    asked = [len(body["prompt"]) for body in engine.bodies if body["max_tokens"] == 9]
    assert asked[:3] == [100, 50, 25]
    assert len(asked) <= 12


def test_a_prompt_of_one_token_is_as_small_as_it_gets() -> None:
    def spoil_all(prompt: Text, answer: Text, ranked: Text) -> int:
        return ranked[-2]

    engine = ToyEngine(choose=spoil_all)
    with run_toy(engine) as url:
        assert shrink(url, (5, 6, 7), max_tokens=2, gap=0.25) == (7,)
    assert len(engine.bodies) == 2 * 3


def test_a_fault_that_is_gone_shrinks_to_nothing() -> None:
    with run_toy(ToyEngine()) as url:
        assert shrink(url, (5, 6, 7), max_tokens=4, gap=0.25) is None
