"""`scripts/engine`: another vLLM is compared whatever it comes up with."""

import argparse
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "scripts" / "engine"
engine: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def make_tables(version: str, *flags: str, kind: str = "integer", **more: Any) -> dict[str, Any]:
    return {
        "version": version,
        "arguments": {
            "version": version,
            "arguments": [{"flags": [flag], "kind": kind} for flag in flags],
        },
        "targets": {"architectures": ["A", "B"]},
        "parsers": {"tool": [{"name": "x"}], "reasoning": [{"name": "y"}]},
        "patches": {"p": "same"},
        "problems": [],
        **more,
    }


def test_what_another_engine_takes_away_breaks_only_what_uses_it() -> None:
    ours = make_tables("1", "--used", "--unused")
    same = engine.compare(ours, make_tables("2", "--used", "--unused", "--new"), {"--used"})
    assert (same["breaking"], same["tables"]["arguments"]["added"]) == ([], ["--new"])
    other = make_tables(
        *("2", "--other"),
        targets={"architectures": ["B", "C"]},
        parsers={"tool": [{"name": "z"}], "reasoning": [{"name": "y"}]},
        patches={"p": "gone"},
    )
    changes = engine.compare(ours, other, {"--used"})
    assert changes["tables"]["arguments"]["removed"] == ["--unused", "--used"]
    assert changes["breaking"] == [
        "arguments: --used is gone",
        "targets: A is gone",
        "tool parsers: x is gone",
        "patches: the source of p gone",
    ]
    assert "targets added: 1\n  C" in engine.render(changes)


def test_another_kind_of_value_breaks_a_flag_that_plans_set() -> None:
    changes = engine.compare(make_tables("1", "--a"), make_tables("2", "--a", kind="text"), {"--a"})
    assert changes["breaking"] == ["arguments: --a was integer, and is text"]


def test_a_table_that_cannot_be_made_is_a_line_and_the_others_are_compared() -> None:
    other = make_tables("2", arguments={}, problems=["arguments cannot be read: ImportError"])
    changes = engine.compare(make_tables("1", "--a"), other, {"--a"})
    assert changes["breaking"] == ["arguments cannot be read: ImportError"]
    assert changes["tables"].keys() == {"targets", "tool parsers", "reasoning parsers"}


def test_a_kind_that_nobody_knows_is_a_row_and_a_problem() -> None:
    def parse_colour(text: str) -> str:
        return text

    parser = argparse.ArgumentParser()
    row = engine.describe(parser.add_argument("--colour", type=parse_colour))
    assert row == {"flags": ["--colour"], "kind": "unknown kind: parse_colour"}
    engine.TABLES["arguments"] = lambda: {"arguments": [row]}
    assert engine.make_table("arguments") == (
        {"arguments": [row]},
        ["--colour is of an unknown kind: parse_colour"],
    )


def test_a_python_without_what_is_needed_is_reported_and_not_a_traceback(tmp_path: Path) -> None:
    """A vLLM whose modules all moved away."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "tables", "--json"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    broken = {line.split()[0] for line in found["problems"]}
    assert broken == {"arguments", "parsers", "targets"}
    assert all("cannot be imported" in state for state in found["patches"].values())
