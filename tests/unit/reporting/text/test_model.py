"""What a recipe is known for, as text."""

from slipstream.recipes.recipe import Evidence
from slipstream.reporting.text.model import render_recipe
from tests.unit.planning.pieces import make_recipe


def test_evidence_of_a_quantized_cache_is_shown_as_a_share() -> None:
    found = Evidence(
        by="somebody",
        source="a page",
        hardware="one H100",
        engine_version="0.32.0",
        workload="prose",
        kv_dtype="fp8",
        lost_share=0.0314,
    )
    shown = render_recipe(make_recipe(evidence=(found,)))
    *_, header, row = (line.split() for line in shown.splitlines())
    assert header == ["WORKLOAD", "USERS", "CACHE", "NO", "LONGER", "BEST", "NOTE"]
    assert row == ["prose", "fp8", "3.1", "%"]
