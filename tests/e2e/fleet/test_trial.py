"""A control machine is killed while a drafter is on trial: the machine that serves decides alone.

Real SSH, supervisors and gates; behind each gate is an app without a model, and the requests that
decide are written into the ledger, where the engine's core would write them.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slipstream.fleet.rolling.rollout import Rollout
from slipstream.fleet.running.status import FleetStatus
from slipstream.learning.generation import Generation, LearningFolder
from slipstream.proving_ground import make_smollm2
from slipstream.serving.run import Run, RunFolder, list_runs
from slipstream.serving.supervision.learning_job import find_learning_folder
from slipstream.user_folders import slipstream_cache
from tests.fleet_bed.bed import Bed, Machine, explain_absence, run_bed
from tests.fleet_bed.small_model import make_small_pair
from tests.fleet_bed.stub_engine import write_package
from tests.unit.steering.lines import write

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(explain_absence()), reason=explain_absence() or ""),
]
REPOSITORY = Path(__file__).parents[3]
FLEET = ".local/share/slipstream/fleet/lab"
USUAL, WORSE, BETTER = [25, 9, 2], [3, 0, 0], [29, 20, 12]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """Have a fleet of two replicas that was started from the control machine."""
    cache = slipstream_cache(os.environ)
    target, drafter = make_small_pair(make_smollm2(cache), cache / "fleet-bed")
    with ExitStack() as stack:
        stubs = write_package(Path(stack.enter_context(TemporaryDirectory())))
        sources = (stubs, REPOSITORY / "src", REPOSITORY)
        variables = {"PYTHONPATH": ":".join(map(str, sources)), "HF_HUB_OFFLINE": "1"}
        made = stack.enter_context(run_bed(["one", "two"], variables))
        groups = "".join(
            f'[machines.{name}]\n[groups.{name}]\nmachines = ["{name}"]\n'
            for name in ("one", "two")
        )
        (made.control.home / "fleet.toml").write_text(
            f'name = "lab"\n[model]\ntarget = "{target}"\ndrafter = "{drafter}"\n'
            f'[options]\ncontext = 512\nengine = ["--enforce-eager"]\n{groups}'
        )
        for name in ("better", "worse"):
            shutil.copytree(drafter, made.control.home / name)
        assert "ready" in command(made.control, "up")
        yield made
        command(made.control, "stop")


def command(machine: Machine, *words: str, code: int = 0) -> str:
    done = machine.run(["slipstream", "fleet", *words], timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code in (0, 4) else done.stderr


def find_run(machine: Machine) -> tuple[RunFolder, Run]:
    return list_runs(machine.home / ".local" / "state" / "slipstream" / "runs")[0]


def log_requests(machine: Machine, accepted: list[int]) -> None:
    """Write requests that began and ended just now."""
    now = time.time()
    with find_run(machine)[0].ledger.open("ab") as ledger:
        for _ in range(150):
            ledger.write(write(at=now + 0.2, seconds=0.1, accepted=accepted, cached_tokens=0))
    time.sleep(0.5)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def read_state(machine: Machine) -> str | None:
    trial = find_run(machine)[1].trial
    return trial.state if trial else None


@pytest.mark.parametrize(("name", "accepted"), [("worse", WORSE), ("better", BETTER)])
def test_a_trial_outlives_its_control_machine_and_another_goes_on(
    name: str, accepted: list[int], bed: Bed
) -> None:
    before = find_run(bed["two"])[1].plan.drafter
    log_requests(bed["two"], USUAL)
    words = ["slipstream", "fleet", "swap", str(bed.control.home / name), "--canary", "1"]
    control = subprocess.Popen(
        bed.control.enter(words),
        env={**bed.control.variables, "HOME": str(bed.control.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: read_state(bed["two"]) == "running")
        wait_for(lambda: find_run(bed["two"])[1].plan.drafter != before)
    finally:
        # What it runs on the control machine, and its ssh, die without a word to anybody.
        for process in bed.control.list_processes():
            os.kill(process, 9)
        control.wait()
    record = json.loads((bed["one"].home / FLEET / "rollout.json").read_text())
    assert (record["state"], record["canary"]) == ("rolling", ["two"])

    log_requests(bed["two"], accepted)
    passed = name == "better"
    wait_for(lambda: read_state(bed["two"]) == ("passed" if passed else "rolled back"))
    assert (find_run(bed["two"])[1].plan.drafter == before) is not passed
    # The file is on every machine, and any of them goes on; the lease of the dead one ends first.
    place = ["--fleet", f"{FLEET}/fleet.toml"]
    words = ["swap", "--resume", "--force", "--json", *place]
    said = command(bed["one"], *words, code=0 if passed else 4)
    assert Rollout.model_validate_json(said).state == ("done" if passed else "rolled back")
    names = [find_run(bed[machine])[1].plan.drafter or "" for machine in ("one", "two")]
    assert all((f"/{name}-" in one) is passed for one in names)
    status = FleetStatus.model_validate_json(command(bed["one"], "status", "--json", *place))
    trial = next(one.run.trial for one in status.machines if one.machine == "two" and one.run)
    assert trial is not None
    assert trial.state == ("passed" if passed else "rolled back")


def test_the_other_groups_take_what_one_has_learned_and_kept(bed: Bed) -> None:
    folder, run = find_run(bed["two"])
    state = bed["two"].home / ".local" / "state"
    home = LearningFolder(find_learning_folder({"XDG_STATE_HOME": str(state)}, run))
    made = Generation(
        number=1, drafter=home.find_drafter(1), made_at=datetime.now(UTC), verdict="kept"
    )
    home.add(made, bed.control.home / "better")
    refused = command(bed.control, "swap", "--learned", "two", code=1)
    assert "two serves no drafter that it has learned" in refused

    back = bed["two"].run(["slipstream", "learn", folder.path.name, "--back", "1"], timeout=120)
    assert back.returncode == 0, back.stderr
    words = ("swap", "--learned", "two", "--json")
    rollout = Rollout.model_validate_json(command(bed.control, *words))
    assert (rollout.state, [one.group for one in rollout.groups]) == ("done", ["one"])
    taken, own = (Path(find_run(bed[name])[1].plan.drafter or "") for name in ("one", "two"))
    assert own == home.find_drafter(1)
    assert re.search(r"/drafters/generation-1-[0-9a-f]{12}/drafter$", str(taken))
    assert bed["one"].home in taken.parents
    weights = "model.safetensors"
    assert (taken / weights).read_bytes() == (own / weights).read_bytes()
    assert "is already in use" in command(bed.control, *words, code=1)
    command(bed.control, "swap", "--back")
    assert find_run(bed["one"])[1].plan.drafter != str(taken)
    assert find_run(bed["two"])[1].plan.drafter == str(own)
