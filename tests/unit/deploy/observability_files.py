"""What deploy/observability asks of Prometheus: the dashboard's queries and the rules."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[3] / "deploy" / "observability"
METRIC = re.compile(r"\b(?:vllm:|slipstream_|process_)\w+")
RECORDED = re.compile(r"\bfleet_group\w*:\w+:\w+")
VARIABLES = {
    "$__rate_interval": "1m",
    **dict.fromkeys(("$instance", "$kind", "$fleet", "$group"), ".*"),
}
DASHBOARDS = ("dashboard.json", "fleet-dashboard.json")


def read_yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def read_dashboard(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return document


def list_panel_queries(*names: str) -> dict[str, str]:
    """Return the dashboards' queries by panel and place, as Grafana fills them in."""
    return {
        f"{panel['title']} ({name}, {panel['id']}{target['refId']})": _fill_in(target["expr"])
        for name in names or DASHBOARDS
        for panel in read_dashboard(name)["panels"]
        for target in panel["targets"]
    }


def _fill_in(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def list_rules() -> dict[str, str]:
    groups = read_yaml("alerts.yml")["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def list_recordings() -> dict[str, str]:
    groups = read_yaml("recording.yml")["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def list_metrics(query: str) -> set[str]:
    return set(METRIC.findall(query))


def write_config(
    folder: Path, *, key: str, target: str = "127.0.0.1:8000", interval: str = "15s"
) -> Path:
    """Put the shipped files and a key where Prometheus finds them, for another target."""
    config = read_yaml("prometheus.yml")
    config["global"] = dict.fromkeys(config["global"], interval)
    (scraped,) = config["scrape_configs"]
    scraped["static_configs"][0]["targets"] = [target]
    (folder / scraped["authorization"]["credentials_file"]).write_text(key)
    for name in config["rule_files"]:
        shutil.copy(FOLDER / name, folder)
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path
