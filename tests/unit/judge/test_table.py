"""The table of verdicts is about the plans as they are made now."""

from pathlib import Path

import pytest

from slipstream.engines.vllm_tables import VERSIONS
from tests.judge.plans import make_library, plan_key
from tests.judge.table import Line, Table, Verdict, load_table, save_table, summarize

STALE = "run scripts/judge-plans, read the new verdicts and commit tests/judge/table.json"


def test_no_rule_changed_a_judged_plan_without_a_new_verdict(tmp_path: Path) -> None:
    library = make_library(tmp_path)
    changed = [
        key for key, line in load_table().items() if plan_key(key, library).sha256 != line.sha256
    ]
    assert not changed, f"{len(changed)} judged plans changed, such as {changed[0]}: {STALE}"


def test_every_judged_plan_is_built_by_every_version() -> None:
    table = load_table()
    refused = [
        (key, version, verdict.reason)
        for key, line in table.items()
        for version, verdict in line.verdicts.items()
        if not verdict.is_good
    ]
    assert len(table) >= 400
    assert not refused
    assert all(set(line.verdicts) == set(VERSIONS) for line in table.values())


@pytest.fixture
def two_plans() -> Table:
    good = Verdict(outcome="built", target={"128": "FLASH_ATTN"})
    no_backend = Verdict(outcome="built", target={"512": "ValueError: no valid backend"})
    refused = Verdict(outcome="refused", reason="ValueError: odd heads", warnings=("slow",))
    return {
        "a on h100x1 for latency": Line(sha256="1", verdicts={"0.32.0": good, "0.33.0": refused}),
        "b on gb10x1 for agent": Line(sha256="2", verdicts={"0.32.0": no_backend}, without="d"),
    }


def test_a_table_is_stored_with_every_verdict_once(two_plans: Table, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    save_table(two_plans, file)
    assert load_table(file) == two_plans
    assert file.read_text().count("FLASH_ATTN") == 1


def test_a_layer_without_a_backend_is_no_success(two_plans: Table) -> None:
    good = [line.verdicts["0.32.0"].is_good for line in two_plans.values()]
    assert good == [True, False]
    assert any("2 plans judged, 1 built" in line for line in summarize(two_plans))
