"""The image and its compose file keep what docs/deploy.md promises; no docker is needed."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from slipstream.cli.main import run
from slipstream.serving.run import Terms
from slipstream.serving.service.container import STATE_FOLDER
from slipstream.serving.service.systemd import count_stop_seconds
from tests.unit.planning.settings.test_container_variables import CONTAINER

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "deploy" / "container"
CACHE_FOLDER = "/var/cache/slipstream"
TARGETS = ("cpu", "cuda")
PROFILES = ("plain", "dflash", "dflash-turboquant")
TURBOQUANT = {
    "ENABLE_TURBOQUANT": "1",
    "TQ_MODE": "hybrid",
    "TQ_KEY_BITS": "4",
    "TQ_VALUE_BITS": "3",
}

Steps = list[tuple[str, str]]


def read_stages() -> dict[str, Steps]:
    """Read the Dockerfile: each stage's instructions, on one line each."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: dict[str, Steps] = {"": []}
    steps = stages[""]
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            steps = stages.setdefault(rest.rpartition(" AS ")[2], [])
        if word:
            steps.append((word, " ".join(rest.split())))
    return stages


def find(steps: Steps, word: str) -> list[str]:
    return [rest for name, rest in steps if name == word]


def read_environment(steps: Steps) -> dict[str, str]:
    pairs = [pair.partition("=") for line in find(steps, "ENV") for pair in shlex.split(line)]
    return {name: value for name, _, value in pairs}


def read_compose() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def read_seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_runs_as_nobody_special_and_writes_to_volumes_only(target: str) -> None:
    steps = read_stages()[target]
    assert find(steps, "USER")[-1] == "2000:0"
    assert find(steps, "ENTRYPOINT") == ['["slipstream"]']
    assert find(steps, "CMD") == ['["serve", "--from-env"]']
    assert json.loads(find(steps, "VOLUME")[0]) == [STATE_FOLDER, CACHE_FOLDER]
    environment = read_environment(steps)
    assert environment["HOME"] == STATE_FOLDER
    caches = {name for name, value in environment.items() if value.startswith(CACHE_FOLDER)}
    assert caches >= {"XDG_CACHE_HOME", "SLIPSTREAM_CACHE", "VLLM_CACHE_ROOT"}
    compiled = {"TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE"}
    assert target == "cpu" or caches >= compiled
    made = re.search(r"install --directory --owner 2000 --group 0 --mode 770 (.*)", str(steps))
    assert made
    assert {STATE_FOLDER, CACHE_FOLDER} <= set(re.split(r"[ ']", made[1]))


def test_both_images_end_the_same_way() -> None:
    tails = [read_stages()[target][-7:] for target in TARGETS]
    assert tails[0] == tails[1]
    assert tails[0][0][0] == "VOLUME"


def test_every_version_is_named() -> None:
    stages = read_stages()
    images = dict(line.split("=") for line in find(stages[""], "ARG"))
    digest = r"(?:@sha256:[0-9a-f]{64})?"
    assert re.fullmatch(rf"vllm/vllm-openai:v0\.32\.0{digest}", images["VLLM_IMAGE"])
    assert re.fullmatch(rf"python:3\.11\.\d+-slim-\w+{digest}", images["PYTHON_IMAGE"])
    bases = [line for steps in stages.values() for line in find(steps, "FROM")]
    assert len(bases) == 4
    assert all("${VLLM_IMAGE}" in base or "${PYTHON_IMAGE}" in base for base in bases)
    pins = (FOLDER / "cpu-constraints.txt").read_text().splitlines()[1:]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.+]+", pin)] == []
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]["cpu"]
    assert {pin.removesuffix("+cpu") for pin in pins} >= set(wanted)


def test_no_secret_is_in_the_image() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert not re.search(r"(?i)(token|secret|password|api_key)", text)
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = [line for line in ignored if line.startswith("!")]
    assert ignored[1] == "*"
    copied = {
        word
        for steps in read_stages().values()
        for line in find(steps, "COPY")
        if "--from=" not in line
        for word in line.split()[:-1]
        if not word.startswith("--")
    }
    copied |= set(re.findall(r"type=bind,source=([^,\s]+)", text))
    assert {line[1:] for line in allowed} == copied
    assert all((REPOSITORY / name).exists() for name in copied)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_one_confined_server(profile: str) -> None:
    compose = read_compose()
    service = compose["services"][profile]
    assert service["profiles"] == [profile]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "network_mode" not in service
    assert service["ports"] == ["${PUBLISH:-127.0.0.1:8000}:8000"]
    mounts = [volume.rpartition(":/")[2] for volume in service["volumes"]]
    assert mounts == [STATE_FOLDER[1:], CACHE_FOLDER[1:], "models:ro"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_stop_leaves_time_to_drain_and_a_final_verdict_is_not_restarted(profile: str) -> None:
    service = read_compose()["services"][profile]
    command = service["command"]
    drain = int(command[command.index("--drain") + 1])
    assert drain == Terms().drain_seconds
    assert read_seconds(service["stop_grace_period"]) >= count_stop_seconds(drain)
    assert service["restart"] == "unless-stopped"
    assert "--hold" in command


@pytest.mark.parametrize("profile", PROFILES)
def test_a_slow_first_start_is_not_called_unhealthy(profile: str) -> None:
    check = read_compose()["services"][profile]["healthcheck"]
    assert read_seconds(check["start_period"]) >= (18 + 20) * 60
    (line,) = find(read_stages()["cuda"], "HEALTHCHECK")
    options, _, command = line.partition(" CMD ")
    assert check.pop("test") == ["CMD", *json.loads(command)]
    said = dict(option.removeprefix("--").split("=") for option in options.split())
    assert {name.replace("-", "_"): value for name, value in said.items()} == {
        name: str(value) for name, value in check.items()
    }


def test_the_profiles_differ_by_their_drafts_and_their_cache() -> None:
    compose, image = read_compose(), read_environment(read_stages()["cuda"])
    # The error about a missing volume names it.
    assert compose["volumes"]["slipstream"] == {"name": "slipstream"}
    given = {name: compose["services"][name]["environment"] for name in PROFILES}
    assert given["plain"]["DFLASH_DRAFTER"] == "off"
    assert given["dflash"]["DFLASH_DRAFTER"] is None
    assert given["dflash-turboquant"]["ENABLE_TURBOQUANT"] == "1"
    assert "KV_CACHE_DTYPE" not in given["dflash-turboquant"]
    for variables in given.values():
        assert variables.keys() >= CONTAINER.keys() - {"DFLASH_NUM_SPEC_TOKENS"}
        assert "VLLM_API_KEY" not in variables
        # A variable that is not set must not take one of the image's away.
        assert [name for name in image if name in variables and variables[name] is None] == []
        assert variables["MODEL_PATH"] == f"${{MODEL_PATH:-{image['MODEL_PATH']}}}"


@pytest.mark.parametrize("extra", [{}, TURBOQUANT])
def test_the_published_lines_plan_on_a_spark(
    extra: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    target = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"
    for name, text in {**CONTAINER, **extra, "MODEL_PATH": target}.items():
        monkeypatch.setenv(name, text)
    assert run(["plan", "--from-env", "--host", "gb10", "--json"], os.environ) == 0
    plan = json.loads(capsys.readouterr().out)
    settings = plan["settings"]
    assert settings["context"]["value"] == 65536
    assert settings["context"]["source"] == "environment"
    assert ("kv_dtype" in settings) == bool(extra)
    assert ("attention_backend" in settings) != bool(extra)


def test_the_documented_line_has_the_published_variables() -> None:
    text = (REPOSITORY / "docs" / "deploy.md").read_text()
    found = re.search(r"docker run -d --name vllm-dflash .*?(?=\n```)", text, re.DOTALL)
    assert found
    words = shlex.split(found[0])
    given = [after for word, after in pairwise(words) if word == "-e"]
    variables = dict(pair.split("=", 1) for pair in given)
    assert variables.pop("VLLM_API_KEY") == "$VLLM_API_KEY"
    assert variables == CONTAINER


class Ready(BaseHTTPRequestHandler):
    """A gate that tells how it stands."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Ready) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.shutdown()


def check_health(state: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(FOLDER / "healthcheck.py")]
    environment = {"XDG_STATE_HOME": str(state), "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def keep_run(state: Path, name: str, url: str | None, *, second: int) -> None:
    record = state / "slipstream" / "runs" / name / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"url": url}))
    os.utime(record, (second, second))


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health_is_what_the_newest_run_says(
    tmp_path: Path, server: HTTPServer, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    monkeypatch.setattr(Ready, "status", status)
    keep_run(tmp_path, "old", "http://127.0.0.1:1", second=1)
    keep_run(tmp_path, "new", f"http://127.0.0.1:{server.server_port}", second=2)
    assert check_health(tmp_path).returncode == code


def test_before_an_engine_there_is_no_health(tmp_path: Path) -> None:
    assert check_health(tmp_path).returncode == 1
    keep_run(tmp_path, "planned", None, second=1)
    told = check_health(tmp_path)
    assert (told.returncode, told.stderr) == (1, "no engine has been started yet\n")
