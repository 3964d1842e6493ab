"""The image's own command with AEON-7's variables, in a container that `contain.sh` makes.

No docker is needed: the namespaces are docker's, the root is this machine's below an overlay. One
container goes through all of it, in the order of the file.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.run import Run, RunFolder, find_runs_root, list_runs
from tests.unit.deploy.test_container import REPOSITORY, find, read_environment, read_stages
from tests.unit.planning.settings.test_container_variables import CONTAINER

pytestmark = [pytest.mark.engine, pytest.mark.beside]

KEY = "5e" * 32
IMAGE = read_stages()["cpu"]
COMMAND = [*json.loads(find(IMAGE, "ENTRYPOINT")[0]), *json.loads(find(IMAGE, "CMD")[0])]
CHECK = json.loads(find(IMAGE, "HEALTHCHECK")[0].partition(" CMD ")[2])
# What a small model cannot do is asked for smaller; compiling would take two minutes more.
VARIABLES = CONTAINER | {
    "DFLASH_DRAFTER": "/models/drafter",
    "DFLASH_NUM_SPEC_TOKENS": "7",
    "MAX_MODEL_LEN": "8192",
    "EXTRA_ARGS": "--enforce-eager",
}
NAMESPACES = ("--mount", "--pid", "--net")
AS_USER = ("setpriv", "--reuid", "2000", "--regid", "0", "--clear-groups", "--bounding-set=-all")
READY_WITHIN_SECONDS = 300
DOCKER_STOP_SECONDS = 10
CLIENT = """
import json, sys, urllib.error, urllib.request
path, body, key = sys.argv[1:]
headers = {"content-type": "application/json"}
headers |= {"authorization": f"Bearer {key}"} if key else {}
request = urllib.request.Request(f"http://localhost:8000{path}", body.encode() or None, headers)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        told = answer.status, answer.read().decode()
except urllib.error.HTTPError as fault:
    told = fault.code, fault.read().decode()
json.dump(told, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs, seen from outside."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    volumes: Path
    log: Path

    @property
    def init(self) -> int:
        """Return the number that its process 1 has outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text())

    @property
    def run(self) -> tuple[RunFolder, Run]:
        state = find_runs_root({"XDG_STATE_HOME": str(self.volumes / "lib" / ".local" / "state")})
        return list_runs(state)[0]

    def execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command inside, as `docker exec` does."""
        inside = ("nsenter", "--target", str(self.init), *NAMESPACES, "--root", "--wd", *AS_USER)
        return subprocess.run(
            [*inside, *command], env=self.environment, capture_output=True, text=True
        )

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str = "") -> tuple[int, str]:
        """Send a request from its network."""
        inside = ("nsenter", "--target", str(self.init), "--net", sys.executable, "-c", CLIENT)
        text = json.dumps(body) if body else ""
        told = subprocess.run([*inside, path, text, key], check=True, capture_output=True)
        status, answer = json.loads(told.stdout)
        return status, answer

    def list_processes(self) -> dict[int, dict[str, str]]:
        """Return all its processes, each with what the kernel says of it."""
        kind = (Path("/proc") / str(self.init) / "ns" / "pid").readlink()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns" / "pid").readlink() == kind:
                    lines = (folder / "status").read_text().splitlines()
                    pairs = (line.partition(":") for line in lines)
                    found[int(folder.name)] = {name: text.strip() for name, _, text in pairs}
            except OSError:
                continue
        return found


@contextmanager
def run_container(
    folder: Path, target: Path, variables: dict[str, str], *, mode: int = 0o644
) -> Iterator[Container]:
    """Run the image's command with its own variables and these; root's model has a mode."""
    volumes = folder / "volumes"
    for name, source in (("target", target), ("drafter", SHIPPED_DRAFTER)):
        copy = shutil.copytree(source, volumes / "models" / name)
        for file in copy.iterdir():
            file.chmod(mode)
    for name in ("lib", "cache"):
        (volumes / name).mkdir(mode=0o770)
        os.chown(volumes / name, 2000, 0)
    (folder / "root").mkdir()
    environment = read_environment(IMAGE)
    environment["PATH"] = environment["PATH"].replace("$PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    environment |= variables
    words = [folder / "root", sys.prefix, sys.base_prefix, REPOSITORY, volumes]
    made = ["unshare", *NAMESPACES, "--fork", "--kill-child"]
    made += ["sh", str(Path(__file__).parent / "contain.sh"), *map(str, words)]
    log = folder / "container.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*made, *COMMAND], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Container(process, environment, volumes, log)
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.fixture(scope="module", autouse=True)
def permission() -> None:
    """Leave this to machines that let us make a container."""
    asked = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True)
    if asked.returncode:
        pytest.skip(f"no container can be made here: {asked.stderr.decode().strip()}")


@pytest.fixture(scope="module")
def container(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    variables = VARIABLES | {"VLLM_API_KEY": KEY}
    with run_container(tmp_path_factory.mktemp("container"), target, variables) as running:
        yield running


def test_without_a_key_it_says_what_to_type_and_ends(target: Path, tmp_path: Path) -> None:
    with run_container(tmp_path, target, VARIABLES) as refused:
        assert refused.process.wait(timeout=60) == 1
        assert "IMAGE keys new" in refused.log.read_text()
        assert list((refused.volumes / "lib").rglob("run.json")) == []


def test_a_model_that_only_root_can_read_is_refused_with_its_files(
    target: Path, tmp_path: Path
) -> None:
    with run_container(tmp_path, target, VARIABLES | {"VLLM_API_KEY": KEY}, mode=0o600) as refused:
        assert refused.process.wait(timeout=60) == 1
        told = refused.log.read_text()
    assert "error: user 2000 cannot read the model in /models/target" in told
    assert "/models/target/model.safetensors" in told


def test_it_becomes_healthy_by_the_images_own_check(container: Container) -> None:
    began = time.monotonic()
    told: list[int] = []
    while not told or told[-1]:
        assert container.process.poll() is None, container.log.read_text()[-3000:]
        assert time.monotonic() - began < READY_WITHIN_SECONDS, container.log.read_text()[-3000:]
        time.sleep(2)
        told.append(container.execute(*CHECK).returncode)
    sys.stdout.write(f"\nhealthy in {time.monotonic() - began:.1f} s, after {len(told)} looks")
    assert set(told) == {0, 1}
    assert container.run[1].state == "ready"
    assert container.run[1].restarts == 0, container.log.read_text()[-3000:]


def test_nothing_in_it_is_special_or_left_behind(container: Container) -> None:
    processes = container.list_processes()
    assert len(processes) >= 4
    for status in processes.values():
        assert status["Uid"].split() == ["2000"] * 4
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert status["State"][0] != "Z"
    for file in ("/file", "/opt/slipstream/file", "/models/target/file"):
        assert "Read-only file system" in container.execute("touch", file).stderr


def test_the_published_requests_are_answered(container: Container) -> None:
    assert container.ask("/health")[0] == 200
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, "temperature": 0}
    asked["model"] = CONTAINER["SERVED_MODEL_NAME"]
    assert container.ask("/v1/chat/completions", asked)[0] == 401
    status, answer = container.ask("/v1/chat/completions", asked, KEY)
    assert status == 200
    assert json.loads(answer)["choices"][0]["message"]["content"]
    metrics = container.ask("/metrics", key=KEY)[1]
    accepted = re.search(r"^vllm:spec_decode_num_accepted_tokens_total.* (\S+)$", metrics, re.M)
    assert accepted
    assert float(accepted[1]) > 0


def test_docker_stop_is_in_time_even_without_an_option(container: Container) -> None:
    began = time.monotonic()
    os.kill(container.init, signal.SIGTERM)
    assert container.process.wait(timeout=60) == 0
    seconds = time.monotonic() - began
    sys.stdout.write(f"\nended {seconds:.1f} s after TERM")
    assert seconds < DOCKER_STOP_SECONDS
    folder, run = container.run
    assert (run.state, run.engine) == ("stopped", None)
    assert KEY not in "".join(
        file.read_text(errors="replace") for file in folder.path.rglob("*") if file.is_file()
    )
