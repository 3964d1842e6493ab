"""Two plans are told apart setting by setting."""

from slipstream.planning.difference import diff_plans
from tests.unit.planning.test_planner import plan


def test_equal_plans_have_no_difference() -> None:
    assert diff_plans(plan(), plan()) == ()


def test_each_changed_setting_is_listed_with_the_second_plans_reason() -> None:
    found = {entry.flag: entry for entry in diff_plans(plan(), plan(users=4))}
    assert set(found) == {"--max-num-seqs", "--speculative-config.num_speculative_tokens"}
    assert (found["--max-num-seqs"].left, found["--max-num-seqs"].right) == ("8", "4")
    assert found["--max-num-seqs"].because == "requested"


def test_what_only_one_plan_sets_is_listed_too() -> None:
    found = {entry.flag: entry for entry in diff_plans(plan("gb10"), plan("h100"))}
    assert found["--enforce-eager"].left == "set"
    assert found["--enforce-eager"].right is None
