"""The files of deploy/observability are Prometheus' own, and ask only for what is exported."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.unit.deploy.observability_files import (
    DASHBOARDS,
    FOLDER,
    METRIC,
    RECORDED,
    VARIABLES,
    list_metrics,
    list_panel_queries,
    list_recordings,
    list_rules,
    read_dashboard,
    read_yaml,
    write_config,
)
from tests.unit.vllm_plugin.gate.pieces import Engine, make_gate
from tests.unit.vllm_plugin.steering.reports import make_state

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
    for name, rules in (("alerts", list_rules()), ("recording", list_recordings())):
        checked = run_promtool("check", "rules", f"{name}.yml", folder=FOLDER)
        assert f"{len(rules)} rules found" in checked
        assert "SUCCESS" in run_promtool("test", "rules", f"{name}_test.yml", folder=FOLDER)


@needs_promtool
def test_the_configuration_is_valid_beside_a_key(tmp_path: Path) -> None:
    config = write_config(tmp_path, key="secret")
    shutil.copy(FOLDER / "prometheus.yml", config)
    shown = run_promtool("check", "config", config.name, folder=tmp_path)
    assert "2 rule files found" in shown


def test_every_alert_is_shown_to_fire() -> None:
    fired = {
        case["alertname"]
        for test in read_yaml("alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == set(list_rules())


def test_every_metric_of_ours_is_exported(tmp_path: Path) -> None:
    make_gate(tmp_path, Engine()).run.hear(make_state())
    exported = generate_latest().decode()
    families = {line.split()[2] for line in exported.splitlines() if line.startswith("# TYPE")}
    queries = {**list_panel_queries("dashboard.json"), **list_rules(), **list_recordings()}
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


def test_every_recorded_series_has_its_value_in_a_test() -> None:
    tested = {
        name
        for test in read_yaml("recording_test.yml")["tests"]
        for case in test["promql_expr_test"]
        for name in RECORDED.findall(case["expr"])
    }
    assert tested == set(list_recordings())


def test_the_fleets_dashboard_asks_for_recorded_series_only() -> None:
    queries = list_panel_queries("fleet-dashboard.json").values()
    asked = {name for query in queries for name in RECORDED.findall(query)}
    assert asked == set(list_recordings())
    assert [query for query in queries if METRIC.search(RECORDED.sub("", query))] == []


def test_recorded_series_keep_no_label_that_grows() -> None:
    kept = {
        label.strip()
        for expression in list_recordings().values()
        for labels in re.findall(r"by \(([^)]*)\)", expression)
        for label in labels.split(",")
    }
    # `le` ends in the percentile.
    assert kept == {"fleet", "group", "kind", "status", "le"}
    named = [name for name, text in list_recordings().items() if "by (" not in text]
    assert named == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboards_panels_lie_beside_each_other(name: str) -> None:
    panels = read_dashboard(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert [pair for pair in combinations(panels, 2) if overlap(*pair)] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboard_has_every_variable_that_it_asks_for(name: str) -> None:
    dashboard = read_dashboard(name)
    defined = {f"${one['name']}" for one in dashboard["templating"]["list"]} - {"$datasource"}
    texts = json.dumps(dashboard["panels"])
    asked = {variable for variable in VARIABLES if variable in texts}
    assert asked - {"$__rate_interval"} == defined
    for title, query in list_panel_queries(name).items():
        assert "$" not in query, title
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${datasource}"}
