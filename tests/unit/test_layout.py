"""The frame holds itself: import order, who may import vllm, and tests that can fail.

The order is the design's list: a package may import those above it. Packages that are not
written yet stand in the list already, so the first line of each finds its place held.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "slipstream"

GROUND = ("errors", "records", "atomic_files", "user_folders", "units")
ORDER = (
    "hardware",
    "checkpoints",
    "proving_ground",
    "recipes",
    "engines",
    "planning",
    "steering",
    "serving",
    "measuring",
    "clients",
    "tuning",
    "training",
    "learning",
    "demo",
    "fleet",
    "deployment",
    "sizing",
    "reporting",
    "cli",
)
PLUGIN = "vllm_plugin"
# Beside the ground and `steering`, what the plugin reads of ours: records, and nothing heavy.
READ_BY_PLUGIN = (
    *("serving.messages", "serving.access.gate_file", "serving.access.keys"),
    "learning.kept_text",
)
# What a command may load, and vLLM's processes may not.
HEAVY = ("httpx", "huggingface_hub", "numpy", "scipy", "torch", "safetensors", "yaml")


def find_violations(source: Path) -> list[str]:
    """List every import of ours that does not point up the list."""
    return [
        f"{path.relative_to(source)} imports {imported}"
        for path in sorted(source.rglob("*.py"))
        for imported in sorted(set(imported_modules(path)))
        if not may_import(part_of(path.relative_to(source)), imported)
    ]


def may_import(importer: str, module: str) -> bool:
    """Return whether a top-level part may read a module."""
    imported = module.split(".")[0]
    if importer == imported:
        return True
    if importer == PLUGIN:
        return imported in (*GROUND, "steering") or module.startswith(READ_BY_PLUGIN)
    if imported == PLUGIN:
        return False
    if imported in GROUND:
        return importer not in GROUND or GROUND.index(imported) < GROUND.index(importer)
    if importer == "__main__":
        return imported == "cli"
    return importer in ORDER and imported in ORDER and ORDER.index(imported) < ORDER.index(importer)


def part_of(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else path.stem


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "slipstream":
            names = [f"slipstream.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "slipstream" and rest and not rest.startswith("__"):
                yield rest


def find_homeless(files: list[Path]) -> set[str]:
    """List the top-level parts that the design has no place for."""
    return {part_of(file) for file in files} - {*GROUND, *ORDER, PLUGIN, "__init__", "__main__"}


def test_imports_point_up_the_list() -> None:
    assert find_violations(SOURCE) == []


def test_every_part_of_the_package_has_its_place() -> None:
    assert find_homeless([path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]) == set()


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("hardware/probe.py", "from slipstream.cli.screen import Screen"),
        ("hardware/probe.py", "import slipstream.planning.memory"),
        ("planning/plan.py", "from slipstream import serving"),
        ("reporting/html.py", "from slipstream.cli import main"),
        ("errors.py", "from slipstream.records import Record"),
        ("records.py", "from slipstream.hardware import Host"),
        ("vllm_plugin/gate/middleware.py", "from slipstream.serving.run import Run"),
        ("vllm_plugin/steering/steering.py", "import slipstream.planning.plan"),
        ("serving/run.py", "from slipstream.vllm_plugin import gate"),
        ("planning/plan.py", "def f():\n    from slipstream.fleet import sizing"),
    ],
)
def test_a_violation_is_caught(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert [violation.split()[0] for violation in find_violations(tmp_path)] == [file]


def test_the_plugin_loads_these_records_of_ours_and_nothing_heavy() -> None:
    """vLLM's API process and its core import it at their start."""
    code = (
        "import sys; import slipstream.vllm_plugin.gate.middleware;"
        "import slipstream.vllm_plugin.steering.steering, slipstream.vllm_plugin.patches;"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    ours = {
        name.removeprefix("slipstream.")
        for name in loaded
        if name.startswith("slipstream.") and not name.startswith(f"slipstream.{PLUGIN}")
    }
    assert ours == {
        *("errors", "records", "serving", "serving.access", "learning", *READ_BY_PLUGIN),
        "atomic_files",
        *("steering", "steering.drafts", "steering.flight", "steering.ledger", "steering.state"),
    }
    # The core's scheduler has loaded it before.
    assert {*HEAVY} & {*loaded} == {"numpy"}


def test_a_part_without_a_place_is_caught() -> None:
    assert find_homeless([Path("helpers/strings.py"), Path("hardware/host.py")]) == {"helpers"}


def lint(name: str, code: str) -> str:
    outcome = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select=TID251", f"--stdin-filename={name}", "-"],
        input=code,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return outcome.stdout


@pytest.mark.parametrize("code", ["import vllm\n", "from vllm.config import VllmConfig\n"])
def test_only_the_plugin_may_import_vllm(code: str) -> None:
    assert "TID251" in lint("src/slipstream/planning/rules.py", code)
    assert "TID251" in lint("src/slipstream/cli/serving/serve.py", code)
    assert "TID251" in lint("tests/unit/test_rules.py", code)
    assert "TID251" not in lint("src/slipstream/vllm_plugin/gate/middleware.py", code)


def find_idle_tests(tests: Path) -> list[str]:
    """List the test functions that assert nothing themselves."""
    return [
        f"{path.name}:{node.name}"
        for path in sorted(tests.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(can_fail(part) for part in ast.walk(node))
    ]


def can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    return isinstance(node, ast.Attribute) and node.attr == "raises"


def test_every_test_can_fail() -> None:
    assert find_idle_tests(REPOSITORY / "tests") == []


@pytest.mark.parametrize("body", ["pass", "assert True", "print('fine')"])
def test_an_idle_test_is_caught(tmp_path: Path, body: str) -> None:
    (tmp_path / "test_idle.py").write_text(f"def test_nothing():\n    {body}\n")
    assert find_idle_tests(tmp_path) == ["test_idle.py:test_nothing"]


def test_every_test_file_holds_a_test() -> None:
    empty = [
        path.name
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if "def test_" not in path.read_text()
    ]
    assert empty == []
