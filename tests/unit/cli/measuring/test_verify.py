"""`verify` of a pair and of a run, with a toy of two dozen tokens under vLLM's name."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.hardware import load_host
from slipstream.measuring.verifying.cache_cost import CacheCost
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.measuring.verifying.served_check import ServedCheck
from slipstream.planning import LaunchPlan
from slipstream.planning.settings.draft_lengths import STEERED
from slipstream.serving.access.keys import make_key, read_keys
from slipstream.serving.run import Run, RunFolder, Terms, read_process
from tests.unit.cli.pairs import write_pair
from tests.unit.measuring.verifying.toy_engine import ToyEngine, run_toy, spoil

Capture = pytest.CaptureFixture[str]

REPOSITORY = Path(__file__).parents[4]
PROGRAM = """
import os, sys
copies = os.environ.get("SLIPSTREAM_COPY")
print(*sys.argv, f"copies {copies} in {os.environ.get('SLIPSTREAM_GATE')}", flush=True)
from tests.unit.measuring.verifying.toy_engine import run_as_program
run_as_program(sys.argv[1:], os.environ["TOY_FAULT"])
"""
NOW = datetime(2026, 11, 16, tzinfo=UTC)
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
    return write_pair(tmp_path, weights=True)


def test_a_sound_pair_passes_and_says_under_which_conditions(
    pair: list[str], tmp_path: Path, capsys: Capture
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
    (folder,) = (tmp_path / "cache" / "verify").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["drafted", "drafted.log", "plain.log"]
    plain_log, drafted_log = ((folder / f"{name}.log").read_text() for name in ("plain", "drafted"))
    assert f"--scheduler-cls {STEERED}" in drafted_log
    assert f"copies 31 in {folder / 'drafted' / 'gate.json'}" in drafted_log
    assert "--scheduler-cls" not in plain_log
    assert "copies None in None" in plain_log


def test_a_drafter_that_changes_the_text_leaves_with_4_and_a_short_prompt(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TOY_FAULT", "spoil")
    assert run(["verify", *pair, *FEW, "--workload", "prose"], os.environ) == 4
    shown = capsys.readouterr()
    assert shown.out.startswith("FAILED: Speculation changes the text: ")
    assert "shortest prompt" in shown.out
    assert "is reproduced by" in shown.out
    assert "plain, alone: 1 of 1" in shown.err
    assert "drafted: the engine starts" in shown.err


def test_a_saved_plan_is_verified_as_it_is(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert run(["plan", *pair, "--users", "2", "--json"], os.environ) == 0
    saved = tmp_path / "plan.json"
    saved.write_text(capsys.readouterr().out)
    few = ["--prompts", "1", "--max-tokens", "8", "--samples", "60", "--workload", "prose"]
    assert run(["verify", str(saved), *few, "--json"], os.environ) == 0
    certificate = Certificate.model_validate_json(capsys.readouterr().out)
    assert certificate.concurrency == 2


def test_calls_that_lose_their_arguments_leave_with_4_and_are_shown_from_both_sides(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TOY_FAULT", "empty arguments")
    assert run(["verify", *pair, *FEW, "--workload", "prose"], os.environ) == 4
    shown = capsys.readouterr()
    assert "of 30 requests with tools or a schema are answered differently" in shown.out
    assert 'without drafts: get_weather({"city": "Lisbon", ' in shown.out
    assert "with drafts: get_weather({}), ended by tool_calls" in shown.out
    assert "see vllm#56077: arguments come back empty" in shown.out
    assert "plain, tools: 30 of 30" in shown.err


def test_what_changes_the_text_by_design_is_planned_with_a_warning_and_never_certified(
    pair: list[str], capsys: Capture
) -> None:
    lossy = ["--", "--speculative-config.rejection_sample_method", "fly"]
    assert run(["plan", *pair, "--context", "512", "--json", *lossy], os.environ) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert [fault.code for fault in plan.warnings if fault.code == "lossy"] == ["lossy"]
    assert run(["verify", *pair, *FEW, *lossy], os.environ) == 1
    assert "rejection_sample_method fly changes the text by design" in capsys.readouterr().err


def test_without_drafts_there_is_nothing_to_verify(pair: list[str], capsys: Capture) -> None:
    assert run(["verify", *pair, "--no-speculation"], os.environ) == 1
    assert "there is nothing to verify" in capsys.readouterr().err
    assert run(["verify", *pair, "--html", "nowhere/page.html"], os.environ) == 1
    assert "there is no folder" in capsys.readouterr().err


QUANTIZED = ("--", "--kv-cache-dtype", "fp8")
CACHE = ("--cache", "--prompts", "3", "--max-tokens", "8", "--context", "512")


def test_a_quantized_cache_is_compared_with_the_same_plan_without(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TOY_FAULT", "coarse cache")
    page, tables = tmp_path / "page.html", tmp_path / "tables.md"
    kinds = ("--workload", "prose", "code", "--html", str(page), "--markdown", str(tables))
    assert run(["verify", *pair, *CACHE, *kinds, "--json", *QUANTIZED], os.environ) == 0
    cost = CacheCost.model_validate_json(capsys.readouterr().out)
    assert (cost.passed, cost.kv_dtype) == (True, "fp8")
    assert [(one.kind, one.prompts) for one in cost.kinds] == [
        ("prose", 3),
        ("code", 3),
        ("all", 6),
    ]
    total = cost.kinds[-1]
    assert total.plain.best == total.plain.tokens
    assert total.lost.is_seen
    assert total.lost.value == 1 - total.quantized.best / total.quantized.tokens
    assert 0.15 < total.lost.value < 0.35
    assert total.regret.value == pytest.approx(total.quantized.regret)
    assert cost.sentence.startswith("A cache in fp8 costs ")
    for file in (page, tables):
        assert "cost of the quantized cache" in file.read_text()
    (folder,) = (tmp_path / "cache" / "verify").iterdir()
    logs = {name: (folder / f"{name}.log").read_text() for name in ("quantized", "plain")}
    assert "--kv-cache-dtype fp8" in logs["quantized"]
    assert "--kv-cache-dtype fp8" not in logs["plain"]
    assert all(
        "speculative" in log and f"--scheduler-cls {STEERED}" in log for log in logs.values()
    )


def test_a_cache_that_changes_nothing_is_not_called_free(pair: list[str], capsys: Capture) -> None:
    assert (
        run(["verify", *pair, *CACHE, "--workload", "prose", "json", *QUANTIZED], os.environ) == 0
    )
    shown = capsys.readouterr()
    assert "3 prompts are left out: a grammar or a penalty" in shown.err
    assert shown.out.startswith("A cache in fp8 shows no cost beyond chance: 0.0 ")
    assert "plain, prose: 3 answers" in shown.err


def test_without_a_quantized_cache_there_is_no_cost_to_measure(
    pair: list[str], capsys: Capture
) -> None:
    assert run(["verify", *pair, *CACHE], os.environ) == 1
    shown = capsys.readouterr().err
    assert "has no quantized cache: its type is auto" in shown
    assert "--cache -- --kv-cache-dtype fp8" in shown


class CountingToy(ToyEngine):
    """Drafts with every answer, and has some accepted."""

    def read(self, path: str) -> str:
        if path != "/metrics":
            return super().read(path)
        names = ("drafts", "accepted_tokens")
        count = len(self.bodies)
        return "".join(f"vllm:spec_decode_num_{name}_total{{}} {count}.0\n" for name in names)


def check(
    folder: Path, engine: ToyEngine, pair: list[str], capsys: Capture
) -> tuple[int, ServedCheck]:
    """Have a run in a folder, served by the toy, check itself."""
    assert run(["plan", *pair, "--context", "512", "--json"], os.environ) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    keys = folder / "keys.json"
    make_key(keys, "alice", now=NOW, expires=None)
    here = read_process(os.getpid())
    assert here is not None
    with run_toy(engine) as url:
        served = Run(
            id="toy-1",
            began_at=NOW,
            plan=plan,
            host=load_host("cpu-server"),
            versions={},
            terms=Terms(keys_file=keys, keys_required=True),
            argv=(),
            supervisor=here,
            url=url,
            state="ready",
        )
        RunFolder(folder / "run").begin(served)
        words = ["verify", str(folder / "run"), "--json", "--max-tokens", "12"]
        code = run(words, {})
    assert [key.name for key in read_keys(keys)] == ["alice"]
    shown = capsys.readouterr()
    assert shown.out, shown.err
    return code, ServedCheck.model_validate_json(shown.out)


def test_a_sound_server_passes(pair: list[str], tmp_path: Path, capsys: Capture) -> None:
    engine = CountingToy()
    code, told = check(tmp_path, engine, pair, capsys)
    assert code == 0
    assert told.passed
    assert told.regret.faults == 0
    assert told.counts.accepted
    assert told.sentence.startswith(
        f"Passed: each of {told.regret.tokens} tokens is the target's own"
    )
    judged = [body for body in engine.bodies if "prompt_logprobs" in body]
    assert len(judged) == told.regret.answers


def test_a_server_whose_drafts_change_the_text_fails(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    code, told = check(tmp_path, CountingToy(choose=spoil), pair, capsys)
    assert code == 4
    assert not told.passed
    assert "tokens are not the target's own" in told.sentence


def test_a_run_that_does_not_serve_is_named(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    check(tmp_path, CountingToy(), pair, capsys)
    folder = RunFolder(tmp_path / "run")
    folder.write(folder.read().model_copy(update={"url": None}))
    assert run(["verify", str(folder.path)], {}) == 1
    assert "toy-1 is not serving" in capsys.readouterr().err
    assert run(["verify", str(folder.path), "--html", "page.html"], {}) == 2
