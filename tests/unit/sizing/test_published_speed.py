"""Published tables are reproduced from half of their points.

AEON-7's is of the README of AEON-7/vllm-dflash: a 27B model on one DGX Spark, k = 15. z-lab's is of
the model card of z-lab/gemma-4-31B-it-DFlash: one B300, block 16. Both are in the catalogue.
"""

from collections.abc import Sequence

import pytest

from slipstream.errors import InvalidInputError
from slipstream.recipes.loading import load_recipes
from slipstream.recipes.recipe import Recipe
from slipstream.sizing.arithmetic import PoolLoad
from slipstream.sizing.demand import Demand, KindDemand
from slipstream.sizing.published_speed import RatePoint, choose_points, fit_rates, take_recipe

SPARK, B300 = "qwen3.5-27b-nvfp4-gb10", "gemma-4-31b-it-b300"


def find(name: str) -> Recipe:
    return next(recipe for recipe in load_recipes() if recipe.name == name)


def find_errors(fitted: Sequence[RatePoint], others: Sequence[RatePoint]) -> list[float]:
    fit = fit_rates(fitted, 15)
    return [
        abs(fit.predict(one.kind, one.concurrency) / one.tokens_per_second - 1)
        for one in others
        if one.kind in fit.by_kind
    ]


@pytest.mark.parametrize(
    ("name", "first", "points", "beyond"),
    [(SPARK, 0, 4, 0), (SPARK, 1, 4, 0), (B300, 0, 7, 0), (B300, 1, None, 2)],
)
def test_half_of_a_table_tells_the_other(
    name: str, first: int, points: int | None, beyond: int
) -> None:
    """But for HumanEval and MT-Bench at 32 on a B300: plain rates of both are lower there, too."""
    every = choose_points(find(name).evidence)
    errors = find_errors(every[first::2], every[1 - first :: 2])
    assert points in (len(errors), None)
    within = 0.04 if name == SPARK else 0.10
    assert sum(error >= within for error in errors) == beyond
    assert max(errors) < 0.15


def test_a_recipe_says_how_fast_a_replica_is_at_every_load() -> None:
    speed = take_recipe(find(SPARK))
    for point in choose_points(find(SPARK).evidence):
        cost = speed.find_cost(15).predict(point.concurrency, 15)
        rate = point.concurrency * speed.count_tokens_per_step(point.kind, 15) / cost
        assert rate == pytest.approx(point.tokens_per_second, rel=0.04)
    assert speed.error >= 0.15
    # "About 5.5 of 15 accepted on code, about 2.0 on prose", and 12.2 tokens per second without.
    assert speed.count_tokens_per_step("code", 15) == pytest.approx(6.5, rel=0.05)
    assert speed.count_tokens_per_step("prose", 15) == pytest.approx(3.0, rel=0.05)
    assert 1 / speed.find_cost(0).predict(1, 0) == pytest.approx(12.2, rel=0.01)


def test_published_plain_rates_are_met() -> None:
    speed = take_recipe(find(B300))
    for one in find(B300).evidence:
        assert one.concurrency is not None
        assert one.plain_tokens_per_s is not None
        rate = one.concurrency / speed.find_cost(0).predict(one.concurrency, 0)
        assert rate == pytest.approx(one.plain_tokens_per_s, rel=0.15)


def test_the_first_answer_has_the_size_of_the_cost_model() -> None:
    """Ten code requests of 400 tokens at 262.8 tokens per second, 70 % full: 22 Sparks."""
    speed = take_recipe(find(SPARK))
    demand = Demand(
        source="test",
        kinds=(
            KindDemand(kind="code", requests_per_second=10, prompt_tokens=1, output_tokens=400),
        ),
    )
    load = PoolLoad(speed, 15, demand, 22)
    assert load.mean_sequences == pytest.approx(5, abs=2)
    assert load.busy_share < 0.7


@pytest.mark.parametrize("name", ["qwen3-8b-b200-sglang", "mimo-v2.5-nvfp4-2x-gb10"])
def test_rates_of_one_load_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="no published rates of several concurrencies"):
        take_recipe(find(name))


def test_every_recipe_is_taken_or_refused() -> None:
    taken = 0
    for recipe in load_recipes():
        try:
            speed = take_recipe(recipe)
        except InvalidInputError:
            continue
        taken += 1
        assert speed.lengths
        assert all(1 <= one.tokens_per_step <= one.draft_length + 1 for one in speed.yields)
    assert taken >= 5
