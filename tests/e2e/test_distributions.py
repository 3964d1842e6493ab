"""The wheel as a user gets it: ours, whole, and at work without the repository."""

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).parents[2]
script: Any = SimpleNamespace(**runpy.run_path(str(REPOSITORY / "scripts" / "release")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "src", tree / "src", ignore=leave)
    make_pages = [sys.executable, str(REPOSITORY / "scripts" / "make-pages")]
    subprocess.run([*make_pages, str(tree / "man" / "slipstream.1")], check=True)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", "dist"], cwd=tree, check=True)
    (built,) = (tree / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_nothing_foreign_and_stays_small(wheel: Path) -> None:
    script.check_wheel(wheel)
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {"slipstream/py.typed", "slipstream/proving_ground/drafter/model.safetensors"}
    assert shipped <= {*names}
    assert [name for name in names if name.endswith("share/man/man1/slipstream.1")]


def test_the_wheel_plans_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "HF_HUB_OFFLINE": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run("-c", "import slipstream; print(slipstream.__file__)").startswith(str(tmp_path))
    assert "z-lab/Qwen3-8B-DFlash-b16" in run(
        "-m", "slipstream", "plan", "Qwen/Qwen3-8B", "--host", "gb10"
    )


@pytest.mark.parametrize(
    "foreign", ["tests/test_a.py", "slipstream/notes.pdf", "slipstream/__pycache__/a.py"]
)
def test_a_foreign_file_in_a_wheel_is_refused(foreign: str, tmp_path: Path) -> None:
    wheel = tmp_path / "slipstream-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("slipstream/__init__.py", "")
        archive.writestr(foreign, "")
    with pytest.raises(SystemExit, match=foreign):
        script.check_wheel(wheel)
