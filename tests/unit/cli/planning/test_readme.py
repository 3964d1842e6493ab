"""The first commands of the README end in a plan on the machines that people own."""

import os
import re
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan

README = Path(__file__).parents[4] / "README.md"
GIB = 1 << 30
MACHINES = ("rtx-3090", "rtx-4090", "rtx-5090", "gb10", "h100", "h100x8")


def read_commands() -> list[list[str]]:
    """Return the commands of the first block of shell, without their comments."""
    block = README.read_text().split("```sh", 1)[1].split("```", 1)[0]
    lines = re.findall(r"^slipstream (.*?)(?:\s+#.*)?$", block, re.MULTILINE)
    return [line.split() for line in lines]


def test_the_first_commands_are_demo_plan_serve_and_chat() -> None:
    assert [words[0] for words in read_commands()] == ["demo", "plan", "serve", "chat"]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_first_commands_end_in_a_plan(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` plans as `plan` does, on the machine that it starts on."""
    for _, *words in read_commands()[1:3]:
        assert run(["plan", *words, "--host", machine, "--json"], os.environ) == 0
        made = LaunchPlan.model_validate_json(capsys.readouterr().out)
        assert made.refusals == ()
        assert made.speculation is not None


def test_on_a_laptop_the_demo_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = load_host("cpu-server")
    memory = host.memory.model_copy(update={"total_bytes": 16 * GIB, "available_bytes": 12 * GIB})
    laptop = tmp_path / "laptop.json"
    laptop.write_text(host.model_copy(update={"memory": memory}).to_json())
    _, *words = read_commands()[1]
    assert run(["plan", *words, "--host", str(laptop)], os.environ) == 1
    assert "slipstream demo" in capsys.readouterr().out
