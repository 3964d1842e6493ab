"""Plans that are deployed in the tests, made as a user makes them, without the hub."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from slipstream.cli.arguments import parse_arguments
from slipstream.cli.planning.plan import find_host, make_plan
from slipstream.deployment.deployment import DeploymentOptions
from slipstream.deployment.manifests import read_manifests, render_manifests, render_values
from slipstream.deployment.rules import make_deployment
from slipstream.planning import LaunchPlan
from tests.untrained_drafter import TARGET, DrafterShape, drafter_config

QWEN = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"
GLM = "RedHatAI/GLM-5.3-Flash-NVFP4"
WORDS = {
    "plain": (QWEN, "--host", "gb10", "--no-speculation"),
    "gpu": (QWEN, "--host", "gb10"),
    "group": (GLM, "--host", "gb10-linked-1"),
}
CASES = (*WORDS, "cpu")


@cache
def find_plan(case: str) -> LaunchPlan:
    with patch("huggingface_hub.constants.HF_HUB_OFFLINE", True), TemporaryDirectory() as folder:
        if case == "cpu":
            words = (*_lay_out_pair(Path(folder)), "--host", "cpu-server")
        else:
            words = WORDS[case]
        _, options, _ = parse_arguments(["plan", *words])
        plan = make_plan(options, find_host(options.host))
    # Wherever the test's folder was, the pod's is this.
    text = plan.to_json().replace(folder, "/models")
    return LaunchPlan.model_validate_json(text)


def _lay_out_pair(folder: Path) -> tuple[str, ...]:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET}
    for name, content in (("target", config), ("drafter", drafter_config(config, DrafterShape()))):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(content))
    return str(folder / "target"), "--drafter", str(folder / "drafter")


def write_values(case: str, **options: Any) -> str:
    values = render_values(make_deployment(find_plan(case), DeploymentOptions(**options)))
    # A folder of models is in a claim of the user's.
    return values.replace("\n  source: folder\n", "\n  source: folder\n  claim: models\n")


@cache
def render(case: str, **options: Any) -> str:
    return render_manifests("model", "llm", write_values(case, **options))


@cache
def read(case: str, **options: Any) -> list[dict[str, Any]]:
    """Read what is rendered; it is shared, so whoever changes it takes a copy."""
    return read_manifests(render(case, **options), "the chart")


def find_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found
