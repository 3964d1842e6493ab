"""`scripts/weigh` counts what there is to read, and leaves with 4 above a limit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "weigh"
RUN = "\n".join(f"    step_{number}()" for number in range(12)) + "\n"
FILES = {
    "src/slipstream/cli/arguments.py": 'VERB_GROUPS = {"one": {"a": "x", "b": "y"}, "two": {}}\n',
    "src/slipstream/first.py": "import os\n\ndef first():\n" + RUN,
    "src/slipstream/second.py": "def second():\n" + RUN + "\n# the end\n",
    "tests/unit/test_first.py": "def test_first(): ...\n",
    "scripts/check": "#!/bin/sh\n",
    "docs/index.md": "# Page\n\ntext\n",
    "docs/reference.md": "# Reference\n\nWritten by the command itself.\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def weigh(tree: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), str(tree), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_figure_is_counted(tree: Path) -> None:
    done = weigh(tree, "--json")
    assert done.returncode == 0, done.stderr
    figures = {name: one["count"] for name, one in json.loads(done.stdout).items()}
    assert figures == {
        "lines of Python in src": 31,
        "files of Python in src": 3,
        "files in the fullest folder of src": 2,
        "lines of Python in tests": 1,
        "scripts": 1,
        "pages in docs": 1,
        "lines of pages": 3,
        "lines of generated pages": 3,
        "verbs": 2,
        "repetitions of ten lines in src": 1,
    }


def test_a_folder_that_is_too_full_is_named_and_leaves_with_4(tree: Path) -> None:
    for number in range(15):
        (tree / "src" / "slipstream" / "cli" / f"verb_{number}.py").write_text("")
    done = weigh(tree)
    assert done.returncode == 4
    (line,) = [line for line in done.stdout.splitlines() if "exceeded" in line]
    assert "16 of 14" in line
    assert line.endswith("src/slipstream/cli")
