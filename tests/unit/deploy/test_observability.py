"""The files of deploy/observability are Prometheus' own, and ask only for what is exported."""

import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.unit.deploy.observability_files import (
    FOLDER,
    VARIABLES,
    list_metrics,
    list_panel_queries,
    list_rules,
    read_dashboard,
    read_yaml,
    write_config,
)
from tests.unit.vllm_plugin.gate.pieces import Engine, make_gate
from tests.unit.vllm_plugin.steering.reports import write_report

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: scripts/bootstrap fetches Debian's"
)


def run_promtool(*words: str, folder: Path) -> str:
    done = subprocess.run(
        ["promtool", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_the_rules_and_their_tests_pass() -> None:
    assert f"{len(list_rules())} rules found" in run_promtool(
        "check", "rules", "alerts.yml", folder=FOLDER
    )
    assert "SUCCESS" in run_promtool("test", "rules", "alerts_test.yml", folder=FOLDER)


@needs_promtool
def test_the_configuration_is_valid_beside_a_key(tmp_path: Path) -> None:
    config = write_config(tmp_path, key="secret")
    shutil.copy(FOLDER / "prometheus.yml", config)
    shown = run_promtool("check", "config", config.name, folder=tmp_path)
    assert "1 rule files found" in shown


@needs_promtool
def test_a_rule_that_does_not_parse_is_caught(tmp_path: Path) -> None:
    text = (FOLDER / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(text.replace("sum by", "summ by"))
    with pytest.raises(AssertionError):
        run_promtool("check", "rules", "alerts.yml", folder=tmp_path)


def test_every_alert_is_shown_to_fire() -> None:
    fired = {
        case["alertname"]
        for test in read_yaml("alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == set(list_rules())


def test_every_metric_of_ours_is_exported(tmp_path: Path) -> None:
    make_gate(tmp_path, Engine(), steering_file=write_report(tmp_path / "steering.json"))
    exported = generate_latest().decode()
    families = {line.split()[2] for line in exported.splitlines() if line.startswith("# TYPE")}
    queries = {**list_panel_queries(), **list_rules()}
    asked = {
        name for query in queries.values() for name in list_metrics(query) if "slipstream" in name
    }
    assert len(asked) > 10
    assert {name for name in asked if name.removesuffix("_bucket") not in families} == set()


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    first, second = one["gridPos"], other["gridPos"]
    return all(
        first[at] < second[at] + second[size] and second[at] < first[at] + first[size]
        for at, size in (("x", "w"), ("y", "h"))
    )


def test_the_dashboards_panels_lie_beside_each_other() -> None:
    panels = read_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert [
        (one["title"], other["title"])
        for one, other in combinations(panels, 2)
        if overlap(one, other)
    ] == []


def test_the_dashboard_has_every_variable_that_it_asks_for() -> None:
    dashboard = read_dashboard()
    defined = {f"${one['name']}" for one in dashboard["templating"]["list"]}
    assert VARIABLES.keys() - defined == {"$__rate_interval"}
    for title, query in list_panel_queries().items():
        assert "$" not in query, title
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${datasource}"}
