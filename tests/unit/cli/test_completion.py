"""The scripts complete verbs, options, choices, runs, recipes and machines in real shells."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.cli.arguments import FLEET_VERBS, VERBS
from slipstream.cli.completion import make_script
from slipstream.cli.main import run
from slipstream.hardware import list_machines
from tests.unit.serving.kept_runs import keep

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {shell: make_script(shell) for shell in ("bash", "zsh", "fish")}


def complete(script: str, *words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    typed = " ".join(f"'{word}'" for word in ("slipstream", *words))
    program = f"""
slipstream() {{ [ "$2" = --list ] && echo "listed-$3"; }}
{script}
COMP_WORDS=({typed}); COMP_CWORD={len(words)}
_shtab_slipstream slipstream '{words[-1]}' '{["slipstream", *words][-2]}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=True, cwd="/proc/self/ns"
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ver",), ["verify"]),
        (("plan", "--meth"), ["--method"]),
        (("plan", "--goal", "cap"), ["capacity"]),
        (("keys", "rot"), ["rotate"]),
        (("status", "listed"), ["listed-runs"]),
        (("models", "--recipe", "listed"), ["listed-recipes"]),
        (("plan", "--host", "listed"), ["listed-machines"]),
        (("plan", "listed"), ["listed-targets"]),
        (("serve", "--gate", "ne"), ["net"]),
        (("fleet", "ro"), ["roll"]),
        (("fleet", "plan", "--verb"), ["--verbose"]),
    ],
)
def test_bash_offers_what_fits(
    words: tuple[str, ...], offered: list[str], scripts: dict[str, str]
) -> None:
    assert complete(scripts["bash"], *words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(shell: str, scripts: dict[str, str]) -> None:
    assert all(verb in scripts[shell] for verb in (*VERBS, *FLEET_VERBS))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    read = subprocess.run([shell, "-n"], input=scripts[shell].encode(), capture_output=True)
    assert (read.returncode, read.stderr) == (0, b"")


def test_names_are_listed_one_per_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keep(tmp_path / "slipstream" / "runs", "mine")
    shown = {}
    for kind in ("runs", "recipes", "machines", "targets"):
        assert run(["completion", "--list", kind], {}) == 0
        shown[kind] = capsys.readouterr().out.split()
    assert shown["runs"] == ["mine"]
    assert "qwen3-8b-vllm-ci" in shown["recipes"]
    assert shown["machines"] == list(list_machines())
    assert "Qwen/Qwen3-8B" in shown["targets"]


def test_a_shell_or_a_list_is_named(capsys: Capture) -> None:
    assert run(["completion"], dict(os.environ)) == 2
    assert run(["completion", "bash", "--list", "runs"], {}) == 2
    assert run(["completion", "bash"], {}) == 0
    assert "complete -o bashdefault -F _shtab_slipstream slipstream" in capsys.readouterr().out
