"""Which published speeds an agent's plan is reckoned with."""

from typing import Any

import pytest

from slipstream.planning.agent import DRAFTED, PLAIN, PUBLISHED, count_mtp_tokens, find_speeds
from slipstream.recipes.recipe import Evidence
from tests.unit.planning.pieces import make_recipe, situate


def measure(workload: str, concurrency: int | None, **figures: Any) -> Evidence:
    return Evidence(
        by="us",
        source="a test",
        hardware="GB10",
        engine_version="0.32.0",
        workload=workload,
        concurrency=concurrency,
        **figures,
    )


def test_without_a_measurement_the_published_speeds_count() -> None:
    assert find_speeds(situate(recipe=make_recipe())) == (DRAFTED, PLAIN, PUBLISHED)
    noted = make_recipe(evidence=(measure("code", 1), measure("code", 16, tokens_per_s=300.0)))
    assert find_speeds(situate(recipe=noted)) == (DRAFTED, PLAIN, PUBLISHED)


def test_code_at_concurrency_1_counts_before_any_other_prompt() -> None:
    prose = measure("prose", 1, tokens_per_s=30.0, plain_tokens_per_s=10.0)
    code = measure("Code", 1, tokens_per_s=60.0, plain_tokens_per_s=12.0)
    many = measure("code", 8, tokens_per_s=400.0, plain_tokens_per_s=90.0)
    drafted, plain, source = find_speeds(situate(recipe=make_recipe(evidence=(prose, code, many))))
    assert (drafted, plain) == (60.0, 12.0)
    assert source.startswith("recipe test-recipe")
    assert find_speeds(situate(recipe=make_recipe(evidence=(prose, many))))[:2] == (30.0, 10.0)


def test_what_was_not_measured_plain_keeps_the_published_ratio() -> None:
    alone = make_recipe(evidence=(measure("code", 1, tokens_per_s=48.6),))
    drafted, plain, _ = find_speeds(situate(recipe=alone))
    assert drafted == 48.6
    assert plain == pytest.approx(21.0)


@pytest.mark.parametrize(("layers", "tokens"), [(1, 3), (2, 2), (3, 3), (4, 4)])
def test_mtp_drafts_a_multiple_of_its_layers(layers: int, tokens: int) -> None:
    assert count_mtp_tokens(layers) == tokens
