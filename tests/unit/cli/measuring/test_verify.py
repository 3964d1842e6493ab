"""`verify` as a user types it, with a toy of two dozen tokens under vLLM's name."""

import json
import os
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.proving_ground.test_untrained_drafter import TARGET as TARGET_CONFIG
from tests.unit.serving.weights.pieces import make_shard

REPOSITORY = Path(__file__).parents[4]
PROGRAM = """
import os, sys
from tests.unit.measuring.verifying.toy_engine import run_as_program
run_as_program(sys.argv[1:], os.environ["TOY_FAULT"])
"""
FEW = ("--prompts", "1", "--max-tokens", "8", "--samples", "60", "--context", "512")


@pytest.fixture(autouse=True)
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments of a pair that fits, on a machine that belongs to the test alone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    package = tmp_path / "fake" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for part in (package, *package.parents[:2]):
        (part / "__init__.py").touch()
    (package / "api_server.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}:{REPOSITORY}")
    monkeypatch.setenv("TOY_FAULT", "none")
    monkeypatch.chdir(tmp_path)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET_CONFIG}
    for name, content in (("target", config), ("drafter", drafter_config(config, DrafterShape()))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
        (tmp_path / name / "model.safetensors").write_bytes(make_shard(1000, seed=1))
    return ["target", "--drafter", "drafter"]


def test_a_sound_pair_passes_and_says_under_which_conditions(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, tables = tmp_path / "page.html", tmp_path / "tables.md"
    words = ["verify", *pair, *FEW, "--json", "--html", str(page), "--markdown", str(tables)]
    assert run(words, os.environ) == 0
    certificate = Certificate.model_validate_json(capsys.readouterr().out)
    assert certificate.passed
    assert certificate.findings.tolerance.dtype == "float32"
    under = certificate.conditions
    plan = under.plan
    assert plan is not None
    plain = plan.without_drafts().argv()
    assert not any("speculative" in word for word in plain)
    assert set(plain) < set(plan.argv())
    assert under.workload == "code,reasoning,dialogue,prose,translation,tools,json"
    assert (under.max_tokens, under.seed) == (8, 0)
    assert certificate.concurrency == 4
    prompts = {check.name: check.prompts for check in certificate.findings.checks}
    assert prompts["drafted batched against plain batched"] == 5
    assert prompts["drafted constrained against plain constrained"] == 1
    assert certificate.findings.calls.same == 30
    assert "Speculation does not change the text" in page.read_text()
    assert "tool calls and structured output" in page.read_text()
    assert "drafted batched against plain batched" in tables.read_text()
    logs = sorted(path.name for path in (tmp_path / "cache" / "verify").glob("*/*"))
    assert logs == ["drafted.log", "plain.log"]


def test_a_drafter_that_changes_the_text_leaves_with_4_and_a_short_prompt(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_FAULT", "spoil")
    assert run(["verify", *pair, *FEW, "--workload", "prose"], os.environ) == 4
    shown = capsys.readouterr()
    assert shown.out.startswith("FAILED: Speculation changes the text: ")
    assert "shortest prompt" in shown.out
    assert "happens again" in shown.out
    assert "plain, alone: 1 of 1" in shown.err
    assert "drafted: the engine starts" in shown.err


def test_a_saved_plan_is_verified_as_it_is(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *pair, "--users", "2", "--json"], os.environ) == 0
    saved = tmp_path / "plan.json"
    saved.write_text(capsys.readouterr().out)
    few = ["--prompts", "1", "--max-tokens", "8", "--samples", "60", "--workload", "prose"]
    assert run(["verify", str(saved), *few, "--json"], os.environ) == 0
    certificate = Certificate.model_validate_json(capsys.readouterr().out)
    assert certificate.concurrency == 2


def test_calls_that_lose_their_arguments_leave_with_4_and_are_shown_from_both_sides(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_FAULT", "empty arguments")
    assert run(["verify", *pair, *FEW, "--workload", "prose"], os.environ) == 4
    shown = capsys.readouterr()
    assert "of 30 requests with tools or a schema are answered differently" in shown.out
    assert 'without drafts: get_weather({"city": "Lisbon", ' in shown.out
    assert "with drafts: get_weather({}), ended by tool_calls" in shown.out
    assert "see vllm#56077: arguments come back empty" in shown.out
    assert "plain, tools: 30 of 30" in shown.err


def test_without_drafts_there_is_nothing_to_verify(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *pair, "--no-speculation"], os.environ) == 1
    assert "has no drafts to verify" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_at_once(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *pair, "--html", "nowhere/page.html"], os.environ) == 1
    assert "there is no folder" in capsys.readouterr().err
