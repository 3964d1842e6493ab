"""What is built into an image is known by its hash, comes from one index, and is listed."""

import json
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "deploy" / "container"
SCRIPTS = REPOSITORY / "scripts"
locking: Any = SimpleNamespace(**runpy.run_path(str(SCRIPTS / "release")))
A, B, C = ("a" * 64, "b" * 64, "c" * 64)
DIGEST = f"sha256:{'d' * 64}"


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    name, *rest = words
    command = [sys.executable, str(SCRIPTS / name), *rest]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["cpu", "cuda", "build"])
def test_every_pin_is_locked_by_hash(name: str) -> None:
    pins = set(locking.read_pins((FOLDER / f"{name}-constraints.txt").read_text()))
    lock = (FOLDER / f"{name}-lock.txt").read_text().replace("\\\n", " ")
    locked = {}
    for line in lock.splitlines()[1:]:
        pin, *hashes = line.split()
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
        locked[tuple(pin.split("=="))] = hashes
    assert pins - locked.keys() == ({("torch", "2.13.0+cpu")} if name == "cpu" else set())
    assert locked.keys() <= pins


@pytest.mark.parametrize("name", ["cpu", "cuda", "build"])
def test_cudas_two_packages_are_never_locked_apart(name: str) -> None:
    """Of different versions, vLLM finds no attention backend (scripts/judge-plans)."""
    pins = dict(locking.read_pins((FOLDER / f"{name}-constraints.txt").read_text()))
    assert pins.get("cuda-python") == pins.get("cuda-bindings")


def test_the_cuda_image_and_the_judge_require_equal_versions_of_cudas_two_packages() -> None:
    check = "assert version('cuda-python') == version('cuda-bindings')"
    cuda = (FOLDER / "Dockerfile").read_text().partition("AS cuda")[2]
    agreeing = runpy.run_path(str(SCRIPTS / "judge-plans"))["AGREEING"]
    assert check in cuda
    assert len({pin.partition("==")[2] for pin in agreeing}) == 1


def test_no_package_can_come_from_an_index_that_it_is_not_from() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    assert "extra-index-url" not in dockerfile
    installs = re.findall(r"pip install ([^&\n]*)", dockerfile)
    assert len(installs) == 6
    for words in installs:
        assert "--no-deps" in words
        is_locked = "--require-hashes" in words
        is_torch_alone = "--index-url" in words and "/cpu-torch.txt" in words
        is_ours = "/dist/" in words
        assert is_locked or is_torch_alone or is_ours, words
    lines = (FOLDER / "cpu-torch.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines if line[:1] not in "# "] == ["torch==2.13.0+cpu"]


class Handler(BaseHTTPRequestHandler):
    """An index and a registry: what a path answers is in `answers`."""

    answers: ClassVar[dict[str, tuple[str, str]]]
    digests: ClassVar[dict[str, str]]
    url = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        kind, body = self.answers.get(path, ("", ""))
        self.send_response(200 if kind else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_HEAD(self) -> None:
        if self.headers["Authorization"] != "Bearer granted":
            self.send_response(401)
            challenge = f'Bearer realm="{self.url}/token",service="r",scope="repository:x:pull"'
            self.send_header("WWW-Authenticate", challenge)
        else:
            digest = self.digests.get(self.path)
            self.send_response(200 if digest else 404)
            self.send_header("Docker-Content-Digest", digest or "")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[type[Handler]]:
    class Own(Handler):
        answers: ClassVar = {"/token": ("application/json", '{"token": "granted"}')}
        digests: ClassVar[dict[str, str]] = {}

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        Own.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Own
        server.shutdown()
        thread.join()


FILES = {
    "some_thing-1.0-py3-none-any.whl": A,
    "some_thing-1.0-cp311-cp311-manylinux_2_28_aarch64.whl": B,
    "some_thing-1.0-cp312-cp312-manylinux_2_28_x86_64.whl": C,
    "some_thing-1.0-cp311-cp311-win_amd64.whl": C,
    "some_thing-1.0-cp311-cp311-musllinux_1_2_x86_64.whl": C,
    "some_thing-1.0.tar.gz": C,
    "some_thing-1.0.1-py3-none-any.whl": C,
    "some_thing_else-1.0-py3-none-any.whl": C,
}


@pytest.mark.parametrize("kind", ["html", "json"])
def test_a_lock_has_the_wheels_of_the_image_and_no_others(
    tmp_path: Path, site: type[Handler], kind: str
) -> None:
    links = "".join(f'<a href="../{name}#sha256={sha}">{name}</a>\n' for name, sha in FILES.items())
    listed = [{"filename": name, "hashes": {"sha256": sha}} for name, sha in FILES.items()]
    as_json = ("application/vnd.pypi.simple.v1+json", json.dumps({"files": listed}))
    site.answers["/some-thing/"] = ("text/html", links) if kind == "html" else as_json
    (tmp_path / "pins.txt").write_text("# pinned\nSome_Thing==1.0\nleft==2\n")
    files = (str(tmp_path / "pins.txt"), str(tmp_path / "lock.txt"))
    done = run("release", "lock", *files, "--index", site.url, "--without", "left")
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "lock.txt").read_text().replace("\\\n", " ").splitlines()[1:]
    assert line.split() == ["some-thing==1.0", f"--hash=sha256:{A}", f"--hash=sha256:{B}"]


@pytest.mark.parametrize(
    ("pin", "page", "message"),
    [
        ("thing==1", '<a href="thing-1-py3-none-any.whl">thing-1-py3-none-any.whl</a>', "sha256"),
        ("thing==2", f'<a href="x#sha256={A}">thing-1-py3-none-any.whl</a>', "no wheel of thing 2"),
        ("thing>=1", "", "is no pin"),
        ("--extra-index-url http://x", "", "is no pin"),
    ],
)
def test_what_cannot_be_locked_is_refused(
    tmp_path: Path, site: type[Handler], pin: str, page: str, message: str
) -> None:
    site.answers["/thing/"] = ("text/html", page)
    (tmp_path / "pins.txt").write_text(pin)
    files = (str(tmp_path / "pins.txt"), str(tmp_path / "lock.txt"))
    done = run("release", "lock", *files, "--index", site.url)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "lock.txt").exists()


def test_base_images_are_pinned_to_what_their_tags_are_now(
    tmp_path: Path, site: type[Handler]
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text((FOLDER / "Dockerfile").read_text())
    text = re.sub(r"@sha256:[0-9a-f]{64}", "", file.read_text())
    file.write_text(text)
    assert run("release", "pin", "--check", "--dockerfile", str(file)).returncode == 1
    bases = re.findall(r"^ARG \w+_IMAGE=(\S+):(\S+)$", text, re.MULTILINE)
    assert len(bases) == 2
    for name, tag in bases:
        path = name if "/" in name else f"library/{name}"
        site.digests[f"/v2/{path}/manifests/{tag}"] = DIGEST
    done = run("release", "pin", "--dockerfile", str(file), "--registry", site.url)
    assert done.returncode == 0, done.stderr
    assert file.read_text() == re.sub(r"(?m)^(ARG \w+_IMAGE=\S+)$", rf"\1@{DIGEST}", text)
    assert run("release", "pin", "--check", "--dockerfile", str(file)).returncode == 0


def test_what_is_installed_is_listed_with_licence_and_dependencies() -> None:
    done = run("make-sbom", SOURCE_DATE_EPOCH="1763251200")
    assert done.returncode == 0, done.stderr
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert bill["metadata"]["timestamp"] == "2025-11-16T00:00:00Z"
    assert bill["metadata"]["component"]["name"] == "slipstream"
    components = {one["name"]: one for one in bill["components"]}
    pydantic = components["pydantic"]
    assert pydantic["purl"] == f"pkg:pypi/pydantic@{version('pydantic')}"
    assert pydantic["licenses"] == [{"expression": "MIT"}]
    assert re.fullmatch("[0-9a-f]{64}", pydantic["properties"][0]["value"])
    references = {one["bom-ref"] for one in (*components.values(), bill["metadata"]["component"])}
    assert len(references) == len(components) + 1
    needs = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    assert needs.keys() == references
    assert set.union(*needs.values()) <= references
    ours = needs[bill["metadata"]["component"]["bom-ref"]]
    names = {components[name]["bom-ref"] for name in ("httpx", "huggingface-hub", "pydantic")}
    assert names < ours
    assert run("make-sbom", SOURCE_DATE_EPOCH="1763251200").stdout == done.stdout
