"""A plan's twin without drafts differs from it in nothing else."""

import json

import pytest

from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, Wishes, make_plan
from tests.unit.planning.pieces import DRAFTER, TARGET

METRICS = ("--per-request-spec-decode-metrics", "summary")
AS_JSON = ("--speculative_config", json.dumps({"method": "dflash", "num_speculative_tokens": 3}))


def plan_for(*raw: str, drafts: bool = True) -> LaunchPlan:
    return make_plan(load_host("h100"), TARGET, DRAFTER, None, Wishes(raw=raw, speculation=drafts))


@pytest.mark.parametrize("raw", [(), METRICS, AS_JSON])
def test_only_what_asks_for_drafts_is_gone(raw: tuple[str, ...]) -> None:
    plan = plan_for(*raw)
    twin = plan.without_drafts()
    gone = [one for one in plan.decisions if one not in twin.decisions]
    assert twin.drafter is None
    assert gone
    assert all("spec" in one.flag for one in gone)
    assert not [word for word in twin.argv() if "spec" in word]
    metrics = plan.settings.draft_metrics
    assert twin.change(speculation=plan.speculation, draft_metrics=metrics) == plan


def test_a_plan_without_drafts_is_its_own_twin() -> None:
    plan = plan_for(drafts=False)
    assert plan.without_drafts() == plan
