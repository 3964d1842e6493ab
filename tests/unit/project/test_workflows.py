"""The hosted workflows are pinned, have least permissions, and run what is here to be run."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream.engines.vllm_tables import VERSIONS

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def list_jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in WORKFLOWS:
        for name, job in yaml.safe_load(file.read_text())["jobs"].items():
            yield f"{file.name} {name}", job


def list_steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for place, job in list_jobs():
        for step in job.get("steps", ()):
            yield place, step


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_action_is_pinned_by_commit_with_its_version(file: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", file.read_text())
    assert used
    for action, rest in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", rest)


def test_an_action_has_one_pin_everywhere() -> None:
    texts = "".join(file.read_text() for file in WORKFLOWS)
    used = set(re.findall(r"uses: (\S+@\w+)", texts))
    assert len(used) == len({action.partition("@")[0] for action in used})


def test_nothing_is_permitted_but_what_a_job_names() -> None:
    for file in WORKFLOWS:
        assert yaml.safe_load(file.read_text())["permissions"] == {}
    for place, job in list_jobs():
        assert "permissions" in job, place
        writes = {scope for scope, level in job["permissions"].items() if level == "write"}
        known = ("release.yml", "site.yml deploy", "next-vllm.yml contract")
        assert not writes or place.startswith(known), place
        assert "timeout-minutes" in job or "uses" in job, place


def test_no_checkout_keeps_its_token_and_no_command_is_made_from_an_event() -> None:
    for place, step in list_steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, place
        assert "${{" not in step.get("run", ""), place


def test_only_a_tag_publishes_and_only_after_approval() -> None:
    release = yaml.safe_load((FOLDER / "release.yml").read_text())
    # YAML reads the key `on` as true.
    assert list(release[True]) == ["push"]
    assert list(release[True]["push"]) == ["tags"]
    assert release["jobs"]["publish"]["environment"]["name"] == "release"
    assert release["jobs"]["images"]["environment"] == "release"


def test_every_supported_python_is_checked_and_installed_on() -> None:
    prefix = "Programming Language :: Python :: "
    supported = [
        one.removeprefix(prefix) for one in PROJECT["classifiers"] if one.startswith(prefix)
    ]
    for name, job in (("check", "check"), ("build", "install")):
        jobs = yaml.safe_load((FOLDER / f"{name}.yml").read_text())["jobs"]
        assert jobs[job]["strategy"]["matrix"]["python"] == supported


def test_every_script_that_a_workflow_runs_is_there() -> None:
    scripts = {
        word
        for _, step in list_steps()
        for word in re.findall(r"(?:scripts|\.ci)/[\w-]+", step.get("run", ""))
    }
    assert scripts >= {"scripts/check", "scripts/build-site", ".ci/run"}
    for script in scripts:
        assert (REPOSITORY / script).stat().st_mode & 0o100, script


def test_issue_forms_ask_for_what_the_command_makes() -> None:
    forms = REPOSITORY / ".github" / "ISSUE_TEMPLATE"
    assert "slipstream doctor --bundle" in (forms / "bug.yml").read_text()
    assert "slipstream compare" in (forms / "recipe.yml").read_text()


def test_the_engine_workflow_runs_the_parts_of_the_local_one() -> None:
    jobs = yaml.safe_load((FOLDER / "engine.yml").read_text())["jobs"]
    parts = jobs["engine"]["strategy"]["matrix"]["part"]
    default = re.search(r"set -- (.+)", (REPOSITORY / ".ci" / "run").read_text())
    assert default is not None
    assert ["bootstrap", "check", *parts] == default[1].split()


def test_plans_are_judged_weekly_on_every_version_that_we_know() -> None:
    job = yaml.safe_load((FOLDER / "engine.yml").read_text())["jobs"]["judge"]
    assert job["strategy"]["matrix"]["vllm"] == list(VERSIONS)
    assert any("scripts/judge-plans" in step.get("run", "") for step in job["steps"])
