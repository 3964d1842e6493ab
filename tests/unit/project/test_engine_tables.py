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

import pytest

from slipstream.engines.vllm_tables import VERSIONS, read_arguments
from slipstream.planning.settings import SCHEDULE
from slipstream.planning.settings.draft_lengths import ADAPTIVE
from slipstream.planning.settings.speculation import SAMPLING

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
    ("v1/core/kv_cache_utils.py", "KV cache size: %s tokens", "KV cache holds %s tokens"),
    ("v1/worker/gpu_model_runner.py", "Model loading took", "Model was loaded in"),
    # Elsewhere there are a variable of that name, and the same line.
    ("config/vllm.py", "def use_v2_model_runner(", "def uses_model_runner_v2("),
)
RENAMED = (
    ("v1/core/sched/scheduler.py", "update_draft_token_ids(", "apply_draft_token_ids("),
    ("v1/core/sched/interface.py", "update_draft_token_ids(", "apply_draft_token_ids("),
    ("v1/metrics/loggers.py", "vllm:prefix_cache_queries", "vllm:prefix_cache_lookups"),
    ("compilation/monitor.py", "Initial profiling/warmup run", "Memory profiling"),
)
KNOWN_FOR = ((None, "99.0"), (None, VERSIONS[-1]), (VERSIONS[0], "99.0"))


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


def compare(ours: dict[str, Any], other: dict[str, Any], *planned: str) -> dict[str, Any]:
    users = dict.fromkeys(other["contract"], "b.py")
    changes: dict[str, Any] = engine.compare(ours, other, dict.fromkeys(planned, "a.py"), users)
    return changes


def test_what_another_engine_takes_away_breaks_only_what_uses_it() -> None:
    ours = make_tables("1", "--used", "--unused")
    same = compare(ours, make_tables("2", "--used", "--unused", "--new"), "--used")
    assert (same["breaking"], same["tables"]["arguments"]["added"]) == ([], ["--new"])
    other = make_tables(
        *("2", "--other"),
        targets={"architectures": ["B", "C"]},
        parsers={"tool": [{"name": "z"}], "reasoning": [{"name": "y"}]},
        contract={"vllm.a: B.c": "gone: the parameter d"},
    )
    changes = compare(ours, other, "--used")
    assert changes["tables"]["arguments"]["removed"] == ["--unused", "--used"]
    assert changes["breaking"] == [
        "targets: A is gone",
        "tool parsers: x is gone",
        "arguments: --used is gone; used by a.py",
        "vllm.a: B.c is gone: the parameter d; used by b.py",
    ]
    assert "targets added: 1\n  C" in engine.render(changes)


def test_another_kind_of_value_breaks_a_flag_that_plans_set() -> None:
    changes = compare(make_tables("1", "--a"), make_tables("2", "--a", kind="text"), "--a")
    assert changes["breaking"] == ["arguments: --a was integer, and is text; used by a.py"]


def test_whatever_our_rules_name_of_an_argument_is_missed() -> None:
    """Keys that we plan, values that we set, and arguments that are set beside the planned ones."""
    ours = engine.read_known(None, "99.0")
    rows = engine.name_rows(ours)["arguments"]
    planned = engine.list_planned(rows)
    for flag, part, file in (
        ("--speculative-config", SCHEDULE, "planning/settings/__init__.py"),
        ("--speculative-config", ADAPTIVE, "planning/settings/draft_lengths.py"),
        ("--speculative-config", SAMPLING, "planning/settings/speculation.py"),
        ("--spec-method", "dspark", "planning/"),
        ("--weight-transfer-config", "", "serving/plugin_settings.py"),
        ("--watchdog-config", "", "serving/plugin_settings.py"),
        ("--scheduler-cls", "", "planning/settings/draft_lengths.py"),
    ):
        kept = {name: dict(row) for name, row in rows.items() if part or name != flag}
        for lists in ("keys", "choices"):
            if part and lists in kept[flag]:
                kept[flag][lists] = [one for one in kept[flag][lists] if one != part]
        other = ours | {"arguments": {"arguments": list(kept.values())}, "contract": {}}
        found = engine.compare(ours, other | {"problems": []}, planned, {})["breaking"]
        (line,) = found
        assert line.startswith(f"arguments: {flag} {part}".rstrip() + " is gone; used by ")
        assert file in line


def test_a_table_that_cannot_be_made_is_a_line_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_tables("2", arguments={}, problems=["arguments cannot be read: ImportError"])
    changes = compare(make_tables("1", "--a"), other, "--a")
    assert changes["breaking"] == ["arguments cannot be read: ImportError"]
    assert changes["tables"].keys() == {"targets", "tool parsers", "reasoning parsers"}
    monkeypatch.setitem(engine.keep_changes.__globals__, "ENGINES", tmp_path)
    with pytest.raises(SystemExit, match="no table of arguments"):
        engine.keep_changes(make_tables("1", "--a"), other)


def test_another_version_is_compared_with_the_newest_known_before_it() -> None:
    first, last = VERSIONS[0], VERSIONS[-1]
    versions = [engine.read_known(*asked)["version"] for asked in KNOWN_FOR]
    assert versions == [last, VERSIONS[-2], first]
    with pytest.raises(SystemExit, match=f"there are {first}"):
        engine.read_known("0.1", "99.0")
    newest = engine.name_rows(engine.read_known(None, "99.0"))["arguments"]
    assert newest == read_arguments(last)


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
    named = {module for _, module, _ in engine.read_contract()}
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
    users = engine.find_users()
    assert users.keys() > rows.keys()
    assert "deploy/observability/recording.yml" in users["metric: vllm:num_preemptions"]
    assert (REPOSITORY / "src/slipstream" / users["source: patch cpu-top-k"]).exists()
    assert re.fullmatch("unknown: [0-9a-f]{64}, without add_request", wrong["source: scheduler"])
    assert wrong == {
        "vllm.v1.core.sched.scheduler: Scheduler.add_request": "gone",
        "vllm.config.vllm: VllmConfig.use_v2_model_runner": "gone",
        "source: scheduler": wrong["source: scheduler"],
        "vllm.v1.sample.ops.topk_topp_sampler: apply_top_k_only": "gone: the parameter k",
        "source: patch cpu-top-k": wrong["source: patch cpu-top-k"],
        "vllm.entrypoints.serve.utils.api_utils: cli_env_setup or "
        "vllm.entrypoints.common.startup: cli_env_setup": "gone: now in vllm.entrypoints.elsewhere",
        "metric: vllm:spec_decode_num_drafts": "gone",
        "log line: Loading drafter model": "in fewer places: 1 of 2",
        "log line: Model loading took ": "in fewer places: 1 of 2",
        "log line: KV cache size: ": "gone",
    }


def test_what_a_version_renamed_is_known_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method, a metric and a log line: the new name is added, and both versions pass."""
    package = engine.find_package()
    copied = shutil.copytree(package, tmp_path / "vllm", ignore=leave_out_all_but_code)
    for file, old, new in RENAMED:
        (copied / file).write_text((copied / file).read_text().replace(old, new))
    method = "vllm.v1.core.sched.scheduler: Scheduler.update_draft_token_ids"
    renamed = [
        [method, method.replace("update", "apply")],
        ["metric: vllm:prefix_cache_queries", "metric: vllm:prefix_cache_lookups"],
        ["log line: Initial profiling/warmup run took ", "log line: Memory profiling took "],
    ]
    text = engine.CONTRACT.read_text()
    text = text.replace("either = [", f"either = [{str(renamed)[1:-1]},", 1)
    known = tmp_path / "contract.toml"
    known.write_text(
        text.replace('"Scheduler.run', '"Scheduler.apply_draft_token_ids", "Scheduler.run')
    )
    names, texts = engine.check_contract.__globals__, list(engine.list_texts())
    texts += [(*both[1].split(": "), "a.py") for both in renamed[1:]]
    monkeypatch.setitem(names, "CONTRACT", known)
    monkeypatch.setitem(names, "list_texts", lambda: iter(texts))
    versions = [engine.Sources(place) for place in (package, copied)]
    for sources in versions:
        found = engine.check_contract(sources)
        wrong = {name for name, state in found.items() if not state.startswith("present")}
        assert wrong == ({"source: scheduler"} if sources is versions[1] else set())
    touched, hashes = ["schedule", "update_draft_token_ids"], set[str]()
    state = engine.judge_scheduler(versions[1], touched, hashes)
    assert state.endswith(", without update_draft_token_ids")
    touched.append("apply_draft_token_ids")
    for sources in versions:
        state = engine.judge_scheduler(sources, touched, hashes)
        hashes |= set(re.findall("[0-9a-f]{64}", state))
        assert engine.judge_scheduler(sources, touched, hashes) == "present"
    assert len(hashes) == 2


def test_an_alternative_that_is_no_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "contract.toml"
    known.write_text('either = [["metric: vllm:a", "metric: vllm:b"]]')
    monkeypatch.setitem(engine.unite.__globals__, "CONTRACT", known)
    with pytest.raises(SystemExit, match="metric: vllm:b"):
        engine.unite({"metric: vllm:a": "present"})


def test_what_is_kept_of_a_version_is_what_it_changes_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine.keep_changes.__globals__, "ENGINES", tmp_path)

    def tables(version: str, *flags: str) -> dict[str, Any]:
        parsers = {"tool": [{"name": "x"}], "reasoning": [{"name": "y"}], "multimodal": ["M"]}
        return make_tables(version, *flags, parsers=parsers)

    first, second = tables("0.32.0", "--a"), tables("0.33.0", "--a", "--b")
    engine.keep_changes(first, second)
    engine.keep_changes(second, tables("0.34.0", "--a"))
    kept = json.loads((tmp_path / "vllm_changes.json").read_text())
    said = {version: change["arguments"] for version, change in kept.items()}
    assert said == {
        "0.33.0": {"gone": [], "rows": [{"flags": ["--b"], "kind": "integer"}]},
        "0.34.0": {"gone": ["--b"], "rows": []},
    }
