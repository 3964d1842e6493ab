"""`scripts/engine`: another vLLM is compared whatever it comes up with."""

import argparse
import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "scripts" / "engine"
engine: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT)))

# Named in a command or a logger's name.
NO_MODULES = {"vllm.slipstream", "vllm.entrypoints", "vllm.general_plugins"}
PLANTED = (
    ("_version.py", "'0.32.0'", "'0.33.9'"),
    ("v1/core/sched/scheduler.py", "def add_request(", "def take_request("),
    ("v1/core/sched/interface.py", "def add_request(", "def take_request("),
    ("v1/sample/ops/topk_topp_sampler.py", "k_only(logits: torch.Tensor, k:", "k_only(logits, n:"),
    ("v1/spec_decode/metrics.py", "vllm:spec_decode_num_drafts", "vllm:spec_decode_drafts"),
    ("v1/worker/gpu_model_runner.py", "Loading drafter model", "Loading the drafter"),
    ("v1/worker/cpu_model_runner.py", "Loading drafter model", "Loading the drafter"),
)


def leave_out_all_but_code(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if "." in name and not name.endswith(".py")}


def make_tables(version: str, *flags: str, kind: str = "integer", **more: Any) -> dict[str, Any]:
    return {
        "version": version,
        "arguments": {
            "version": version,
            "arguments": [{"flags": [flag], "kind": kind} for flag in flags],
        },
        "targets": {"architectures": ["A", "B"]},
        "parsers": {"tool": [{"name": "x"}], "reasoning": [{"name": "y"}]},
        "contract": {"vllm.a: B.c": "present 12"},
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
        contract={"vllm.a: B.c": "gone: the parameter d"},
    )
    changes = engine.compare(ours, other, {"--used"})
    assert changes["tables"]["arguments"]["removed"] == ["--unused", "--used"]
    assert changes["breaking"] == [
        "arguments: --used is gone",
        "targets: A is gone",
        "tool parsers: x is gone",
        "vllm.a: B.c is gone: the parameter d",
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


def test_the_installed_engine_has_every_name_and_source() -> None:
    found = engine.check_contract(engine.Sources(engine.find_package()))
    assert {name: state for name, state in found.items() if not state.startswith("present")} == {}
    assert len(found) > 150


def test_whatever_we_import_is_in_the_contract() -> None:
    named = {module for _, modules, _ in engine.read_contract() for module in modules}
    imported = set()
    for path in (REPOSITORY / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                imported |= set(re.findall(r"^vllm(?:\.\w+)+$", node.value))
    ours = {module for module in imported if module and module.startswith("vllm.")}
    assert len(ours) > 15
    assert ours - named - NO_MODULES == set()


def test_planted_changes_of_another_version_are_named(tmp_path: Path) -> None:
    """A release whose modules, methods, parameters, metrics, lines and sources are others."""
    package = engine.find_package()
    copied = shutil.copytree(package, tmp_path / "vllm", ignore=leave_out_all_but_code)
    for file, old, new in PLANTED:
        text = (copied / file).read_text()
        assert old in text, file
        (copied / file).write_text(text.replace(old, new))
    (copied / "entrypoints/serve/utils/api_utils.py").rename(copied / "entrypoints/elsewhere.py")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "contract", str(copied), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    rows = {name: list(row.values())[-1] for name, row in json.loads(done.stdout).items()}
    assert rows["source: patch drafter-positions"] == "present: not patched"
    sound = ("present", "changed", engine.UNPATCHED)
    wrong = {name: state for name, state in rows.items() if state not in sound}
    assert wrong.pop("source: scheduler").startswith("unknown: ")
    assert wrong == {
        "vllm.v1.core.sched.scheduler: Scheduler.add_request": "gone",
        "vllm.v1.sample.ops.topk_topp_sampler: apply_top_k_only": "gone: the parameter k",
        "source: patch cpu-top-k": wrong["source: patch cpu-top-k"],
        "vllm.entrypoints.serve.utils.api_utils: cli_env_setup": "gone: now in "
        "vllm.entrypoints.elsewhere",
        "metric: vllm:spec_decode_num_drafts": "gone",
        "log line: Loading drafter model": "gone",
    }
