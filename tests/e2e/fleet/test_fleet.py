"""A fleet over real SSH: machines are seen, measured, equipped, changed from one machine only."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream
from slipstream.fleet.machines.installing import WHEELS
from slipstream.fleet.plan import FleetPlan
from tests.fleet_bed.bed import Bed, explain_absence, run_bed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(explain_absence()), reason=explain_absence() or ""),
]
SOURCE = Path(slipstream.__file__).parents[1]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with run_bed(["one", "two"], {"HF_HUB_OFFLINE": "1"}) as made:
        yield made


def fleet_verb(bed: Bed, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb on the control machine."""
    python = ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", "slipstream"]
    file = bed.control.home / "fleet.toml"
    return bed.control.run([*python, "fleet", *words, "--fleet", str(file)], timeout=120)


COMMIT = "a" * 40
FLEET = """
name = "lab"
[model]
target = "me/tiny"
[options]
context = 256
[machines.one]
python = "~/python"
[machines.two]
python = "~/venv/bin/python"
[groups.a]
machines = ["one", "two"]
speculation = false
"""
SPREAD = """
import sys
from pathlib import Path
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.machines.weights import spread_weights
plan = FleetPlan.model_validate_json(Path(sys.argv[1]).read_text())
with open_ssh(plan.fleet) as far:
    spread_weights(plan, ["a"], far, lambda *words: print(*words))
"""
HOLD = """
import sys, time
from pathlib import Path
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.record import read_fleet
fleet = read_fleet(Path(sys.argv[1]))
with open_ssh(fleet) as far, holding(far, "roll"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module", autouse=True)
def _equip(bed: Bed) -> None:
    """Put this Slipstream and a model on `one`, and on `two` an interpreter without Slipstream."""
    (bed.control.home / "fleet.toml").write_text(FLEET)
    wrapper = bed["one"].home / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    venv.create(bed["two"].home / "venv", symlinks=True)
    packages = next((bed["two"].home / "venv" / "lib").glob("python*/site-packages"))
    (packages / "engine.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    for machine in ("one", "control"):
        write_model(bed[machine].home / ".cache/huggingface/hub/models--me--tiny")


def write_model(tree: Path) -> None:
    """Lay a model out as huggingface_hub keeps it."""
    snapshot = tree / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (tree / "refs").mkdir()
    (tree / "refs" / "main").write_text(COMMIT)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}
    config |= {"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 128}
    (snapshot / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + b"\0" * 8
    (tree / "blobs").mkdir()
    (tree / "blobs" / "weights").write_bytes(weights)
    (snapshot / "model.safetensors").symlink_to("../../blobs/weights")


def on_control(bed: Bed, code: str, *words: str) -> list[str]:
    environment = ["env", f"PYTHONPATH={SOURCE}"]
    return bed.control.enter([*environment, sys.executable, "-c", code, *words])


def test_a_machine_without_slipstream_gets_it_and_is_then_planned_for(bed: Bed) -> None:
    before = fleet_verb(bed, "probe")
    assert before.returncode == 1
    assert "two has slipstream of an unknown version" in before.stdout
    assert "hint: slipstream fleet probe --install" in before.stdout
    planned = fleet_verb(bed, "plan", "--install", "--json")
    plan = FleetPlan.model_validate_json(planned.stdout)
    assert plan.refusals == ()
    # What has this version is left alone, and `one` shares its packages with these tests.
    assert [(bed[name].home / WHEELS).exists() for name in ("one", "two")] == [False, True]
    own = {(link.interface_a, link.interface_b, link.kind) for link in plan.links}
    assert own == {("eth0", "eth0", "tcp"), ("link0", "link0", "tcp")}
    assert all((link.gigabits or 0) > 0.01 for link in plan.links)
    chosen = plan.groups[0].ranks[1].plan.environment
    assert chosen["VLLM_HOST_IP"].value in (bed["two"].address, bed["two"].link_address)
    (bed.control.home / "plan.json").write_text(planned.stdout)


def test_weights_go_from_machine_to_machine_and_are_hashed_there(bed: Bed) -> None:
    tree = bed["two"].home / ".cache/huggingface/hub/models--me--tiny"
    assert not tree.exists()
    command = on_control(bed, SPREAD, str(bed.control.home / "plan.json"))
    environment = {**os.environ, "HOME": str(bed.control.home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "two copying me/tiny" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "two checked me/tiny"
    there = tree / "snapshots" / COMMIT / "model.safetensors"
    assert there.is_symlink()
    assert there.read_bytes()[-8:] == b"\0" * 8


def test_a_second_control_machine_waits_until_the_first_is_gone(bed: Bed) -> None:
    command = on_control(bed, HOLD, str(bed.control.home / "fleet.toml"))
    environment = {**os.environ, "HOME": str(bed.control.home)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        refused = fleet_verb(bed, "stop")
        assert refused.returncode == 1
        assert "holds the fleet for roll until" in refused.stderr
        first.communicate(b"\n")
    assert fleet_verb(bed, "stop").returncode == 0
    assert bed["one"].list_processes() == {}


def test_a_machine_whose_host_key_changed_is_not_talked_to(bed: Bed) -> None:
    known = bed.control.home / ".ssh" / "known_hosts"
    kept = known.read_text()
    known.write_text("\n".join(line for line in kept.splitlines() if not line.startswith("two")))
    try:
        shown = fleet_verb(bed, "status")
    finally:
        known.write_text(kept)
    assert "two cannot be reached: its host key is unknown here" in shown.stdout
    assert "hint: ssh two" in shown.stdout
