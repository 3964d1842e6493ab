"""`models` and `plan` with a hub at hand: what it lists is compared with the target's files.

The command runs in a process of its own, since huggingface_hub takes its endpoint from the
environment when it is imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slipstream.planning.drafters.candidates import Candidate, DrafterList
from slipstream.planning.drafters.resolution import ModelReport
from tests.unit.checkpoints.folders import LLAMA, LLAMA_TENSORS, drafter_tensors, write_checkpoint
from tests.unit.checkpoints.hub_server import FakeHub, Fault, Repository, run_hub
from tests.untrained_drafter import DrafterShape, drafter_config

SHA = "0123456789abcdef0123456789abcdef01234567"
BASE = "base_model:maker/target"
TAGS = ("dflash", "speculative-decoding", BASE, "base_model:finetune:maker/target")
WIDE = {**LLAMA, "hidden_size": 128}


def lay_out(root: Path) -> dict[str, Repository]:
    """Lay out a target, a quantised build of a fine-tune of it, good drafters and poisoned ones."""

    def write(name: str, config: dict[str, Any], *, tensors: bool = True) -> Path:
        listed = drafter_tensors(config) if "dflash_config" in config else LLAMA_TENSORS
        return write_checkpoint(root / name, config, tensors=listed if tensors else None)

    good, wide = (drafter_config(config, DrafterShape()) for config in (LLAMA, WIDE))
    coded = write("coded", good)
    (coded / "modeling_evil.py").write_text("raise SystemExit('code of a repository was run')\n")
    (coded / "config.json").write_text(
        json.dumps(good | {"auto_map": {"AutoModel": "modeling_evil.Evil"}})
    )
    pickled = write("pickled", good, tensors=False)
    (pickled / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    broken = write("broken", good)
    (broken / "config.json").write_text("{")
    folders = {
        "maker/target": (write("target", LLAMA), ()),
        "tuner/finetune": (write("finetune", LLAMA), (BASE,)),
        "quant/finetune-x": (write("build", LLAMA), ("base_model:tuner/finetune",)),
        "honest/target-DFlash": (write("good", good), (*TAGS, "license:mit")),
        "poison/wide-DFlash": (write("wide", wide), TAGS),
        "poison/coded-DFlash": (coded, (*TAGS, "custom_code")),
        "poison/pickled-DFlash": (pickled, TAGS),
        "poison/broken-DFlash": (broken, TAGS),
        "poison/whole-model-DFlash": (write("whole", LLAMA), TAGS),
        "poison/target-elsewhere-dflash": (write("other", good), ("dflash",)),
        "poison/target-DFlash-GGUF": (write("gguf", good), (*TAGS, "gguf")),
        "../etc/target-DFlash": (write("escape", good), TAGS),
    }
    return {name: Repository(folder, SHA, tags=tags) for name, (folder, tags) in folders.items()}


@dataclass
class Desk:
    """A command line with a hub, and what has been asked already."""

    hub: FakeHub
    home: Path
    answers: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def run(self, *words: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        environment = kept | {
            "HOME": str(self.home),
            "HF_HOME": str(self.home),
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HUB_OFFLINE": "1" if offline else "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", "slipstream", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def list_drafters(self, target: str) -> DrafterList:
        key = ("models", target, "--host", "h100", "--json")
        if key not in self.answers:
            self.answers[key] = self.run(*key)
        assert self.answers[key].returncode == 0, self.answers[key].stderr
        return ModelReport.model_validate_json(self.answers[key].stdout).drafters

    def find(self, drafter: str, target: str = "maker/target") -> Candidate:
        listed = self.list_drafters(target).candidates
        return next(candidate for candidate in listed if candidate.drafter == drafter)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with run_hub(lay_out(tmp_path_factory.mktemp("hub"))) as hub:
        yield Desk(hub, tmp_path_factory.mktemp("home"))


def test_a_drafter_that_names_the_target_as_base_and_fits_is_taken(desk: Desk) -> None:
    listed = desk.list_drafters("maker/target")
    first = listed.candidates[0]
    assert (first.drafter, first.match, first.verdict) == ("honest/target-DFlash", "exact", "fits")
    assert (first.found, first.licence, first.obstacle) == ("hub", "mit", None)
    assert listed.chosen == "honest/target-DFlash"
    assert listed.hub.startswith("searched: ")


@pytest.mark.parametrize(
    ("drafter", "reason"),
    [
        ("poison/wide-DFlash", "hidden size 128"),
        ("poison/pickled-DFlash", "no safetensors"),
        ("poison/broken-DFlash", "config.json of poison/broken-DFlash is not JSON"),
        ("poison/whole-model-DFlash", "not a drafter"),
    ],
)
def test_a_poisoned_listing_does_not_fit_and_stands_last(
    desk: Desk, drafter: str, reason: str
) -> None:
    found = desk.find(drafter)
    assert found.verdict == "does not fit"
    assert reason in found.because
    ranked = [one.verdict for one in desk.list_drafters("maker/target").candidates]
    assert ranked == sorted(ranked, key=lambda verdict: verdict == "does not fit")


def test_a_repository_with_code_is_named_and_not_taken_and_its_code_is_not_run(desk: Desk) -> None:
    found = desk.find("poison/coded-DFlash")
    assert found.verdict == "fits"
    assert found.obstacle == "its repository contains code, which slipstream never runs"
    assert not any(answer.path.endswith(".py") for answer in desk.hub.log)
    assert not any(answer.path.endswith(".bin") for answer in desk.hub.log)


def test_a_drafter_that_only_its_tag_and_name_speak_for_is_not_taken(desk: Desk) -> None:
    found = desk.find("poison/target-elsewhere-dflash")
    assert found.match == "name"
    assert found.obstacle == "it does not name this target as its base"


def test_what_no_engine_here_loads_and_what_is_no_name_is_not_listed(desk: Desk) -> None:
    names = [one.drafter for one in desk.list_drafters("maker/target").candidates]
    assert "poison/target-DFlash-GGUF" not in names
    assert not any(name.startswith("..") for name in names if name)


def test_a_build_of_a_fine_tune_finds_the_drafter_of_the_base(desk: Desk) -> None:
    listed = desk.list_drafters("quant/finetune-x")
    assert listed.base_models == ("tuner/finetune", "maker/target")
    assert listed.chosen == "honest/target-DFlash"
    assert listed.candidates[0].match == "base"


def test_plan_takes_what_the_hub_lists_and_says_why(desk: Desk) -> None:
    planned = desk.run("plan", "maker/target", "--host", "h100", "--json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    named = plan["settings"]["speculation"]["drafter"]
    assert named["value"] == "honest/target-DFlash"
    assert named["source"] == "index"
    assert named["because"].startswith(
        "honest made it for this target; listed on the hub, not in the index; licence mit"
    )
    assert plan["settings"]["speculation"]["revision"]["value"] == SHA


def test_without_a_listing_the_index_is_searched_and_that_is_said(desk: Desk) -> None:
    desk.hub.faults["list"] = [Fault(status=404)]
    listed = desk.run("models", "Qwen/Qwen3-8B", "--host", "h100", "--json")
    desk.hub.faults.clear()
    assert listed.returncode == 0, listed.stderr
    assert "z-lab/Qwen3-8B-DFlash-b16" in listed.stdout
    assert ModelReport.model_validate_json(listed.stdout).drafters.hub.startswith("not searched: ")


def test_a_hub_out_of_reach_is_asked_once_and_nothing_is_printed_of_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.hub, "endpoint", "http://127.0.0.1:9")
    listed = desk.run("models", "Qwen/Qwen3-8B", "--host", "h100")
    assert (listed.returncode, listed.stderr) == (0, "")


def test_offline_a_cached_target_is_listed_from_the_index_only(desk: Desk) -> None:
    asked_before = len(desk.hub.log)
    listed = desk.run("models", "Qwen/Qwen3-8B", "--json", offline=True)
    assert ModelReport.model_validate_json(listed.stdout).drafters.hub == (
        "not searched: HF_HUB_OFFLINE is set, so only the index was searched"
    )
    assert len(desk.hub.log) == asked_before
