"""`slipstream verify` on the real engine: sound drafts pass, planted faults do not.

The faults are in one engine, by a plugin of vLLM's own kind: every 25th accepted token is another,
about one in a hundred of all; and drafted requests are sampled at a quarter of their temperature.
The sampling test does not see the first fault, nor greedy decoding the second.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.measuring.verifying.cache_cost import CacheCost
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.measuring.verifying.conformance import asking
from slipstream.measuring.verifying.conformance.cases import CASES
from slipstream.planning import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.planning.settings.patches import CPU_SAMPLING, VARIABLE
from slipstream.proving_ground import SHIPPED_DRAFTER

pytestmark = [pytest.mark.engine, pytest.mark.beside]

# Short cache blocks: fewer lengths to try, and prompts that the cache can hold. The template shows
# tools and earlier calls, which the model's own does not: so it makes calls by itself, too.
TEMPLATE = Path(__file__).parent / "tools_template.jinja"
ENGINE = (
    *("--enforce-eager", "--block-size", "32", "--chat-template", str(TEMPLATE)),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
FEW = ("--workload", "prose", "json", "--prompts", "2", "--max-tokens", "24", "--samples", "64")
REASONING = ("call after reasoning", "schema after reasoning")
PLUGIN = """
def register():
    from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler

    forward, accepted = RejectionSampler.forward, 0

    def change_now_and_then(self, metadata, draft_probs, logits, sampling):
        nonlocal accepted
        if not sampling.all_greedy:
            logits = 4 * logits
        output = forward(self, metadata, draft_probs, logits, sampling)
        for row in output.sampled_token_ids:
            for place in range(len(row) - 1):
                if row[place + 1] != PLACEHOLDER_TOKEN_ID:
                    accepted += 1
                    if accepted % 25 == 0:
                        row[place] = 1000 + row[place] % 1000
        return output

    RejectionSampler.forward = change_now_and_then
"""


@pytest.fixture(autouse=True)
def keep_logs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))


# The plan is our own.
TRUSTED = ("--allow", "chat-template")


@pytest.fixture(scope="module")
def plan(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the plan of the shipped pair, as a user would."""
    saved = tmp_path_factory.mktemp("plan") / "plan.json"
    options = ("--drafter", str(SHIPPED_DRAFTER), "--context", "512", "--users", "4")
    with pytest.MonkeyPatch.context() as patch, saved.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert run(["plan", str(target), *options, "--json", "--", *ENGINE], os.environ) == 0
    return saved


def verify(plan: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Certificate]:
    code = run(["verify", str(plan), *FEW, *TRUSTED, "--json"], os.environ)
    shown = capsys.readouterr()
    assert shown.out, shown.err
    return code, Certificate.model_validate_json(shown.out)


def test_the_shipped_drafter_does_not_change_the_text(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask_only(monkeypatch, "named", "parallel", "auto", *REASONING)
    code, certificate = verify(plan, capsys)
    assert certificate.passed, certificate.sentence
    assert code == 0
    found = certificate.findings
    assert found.tolerance.dtype == read_dtype(plan)
    assert found.regrets[1].tokens > 400
    assert found.regrets[1].best > 0.97 * found.regrets[1].tokens
    assert {check.right[1] for check in found.checks} == {
        *("alone", "long", "cached", "batched", "constrained", "lengths")
    }
    assert (found.counts.accepted or 0) > 50
    assert (found.counts.cache_hits or 0) > 500
    assert found.sampling.p_value > 0.001
    calls = found.calls
    assert calls.requests == calls.same == 9, calls.differences
    assert calls.drafted_calls == calls.plain_calls >= 9
    assert (calls.plain_invalid, calls.drafted_invalid) == ({}, {})
    assert set(calls.skipped) == set(REASONING)


def test_a_wrong_token_in_a_hundred_and_a_lost_temperature_are_caught(
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sound = LaunchPlan.model_validate_json(plan.read_text())
    assert CPU_SAMPLING in sound.patches
    only = Choice(CPU_SAMPLING, "user", "drafts of one length")
    steady = sound.change_variables({VARIABLE: only})
    steady = steady.model_copy(update={"patches": (CPU_SAMPLING,)})
    (tmp_path / "plan.json").write_text(steady.to_json())
    install_plugin(tmp_path / "plugins", PLUGIN)
    ask_only(monkeypatch, "named")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugins"), prepend=os.pathsep)
    code, certificate = verify(tmp_path / "plan.json", capsys)
    assert code == 4
    found = certificate.findings
    assert found.regrets[0].faults == 0
    assert found.regrets[1].faults >= 2
    assert found.regrets[1].faults < 0.1 * found.regrets[1].tokens
    assert found.failure is not None
    assert not found.sampling.passed, found.sampling
    assert found.sampling.distance > 0.6  # far more than chance makes of 64 samples
    assert "Speculation changes the text" in certificate.sentence
    assert "sampled text has another distribution" in certificate.sentence
    assert json.loads(certificate.to_json())["passed"] is False


# What is written into a cache in fp8; the drafter's own cache is not.
CACHE_PLUGIN = """
def register():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    store = CPUAttentionBackendImpl.do_kv_cache_update

    def spoil(self, layer, key, value, *rest):
        if self.is_fp8_kv_cache:
            {fault}
        store(self, layer, key, value, *rest)

    CPUAttentionBackendImpl.do_kv_cache_update = spoil
"""


# The upper end of the sound cache's interval, measured twice: 0.037 and 0.039.
SOUND_FP8_REGRET = 0.04


@pytest.mark.weekly
@pytest.mark.parametrize("fault", ["value = 1.5 * value", "value = value.flip(1)"])
def test_a_wrong_scale_or_a_swapped_head_costs_far_more(
    fault: str,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install_plugin(tmp_path / "plugins", CACHE_PLUGIN.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugins"), prepend=os.pathsep)
    cost = measure_fp8(target, capsys)
    sys.stdout.write(f"\n{fault}: {cost.sentence}\n")
    regret = cost.kinds[-1].regret
    assert regret.value - (regret.error or 0) > SOUND_FP8_REGRET


def measure_fp8(target: Path, capsys: pytest.CaptureFixture[str]) -> CacheCost:
    words = ("--drafter", str(SHIPPED_DRAFTER), "--context", "1024", "--users", "4", "--json")
    asked = ("--workload", "code", "prose", "--prompts", "6", "--max-tokens", "64")
    engine = ("--", "--enforce-eager", "--kv-cache-dtype", "fp8")
    assert run(["verify", str(target), "--cache", *words, *asked, *engine], os.environ) == 0
    return CacheCost.model_validate_json(capsys.readouterr().out)


@pytest.mark.weekly
def test_a_cache_in_fp8_costs_a_little_and_its_drafts_are_still_accepted(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = measure_fp8(target, capsys)
    assert [one.kind for one in cost.kinds] == ["code", "prose", "all"]
    total = cost.kinds[-1]
    assert total.plain.best > 0.97 * total.plain.tokens
    assert 0.8 * total.quantized.tokens < total.quantized.best < total.quantized.tokens
    assert total.quantized.regret > total.plain.regret
    for text in (total.quantized, total.plain):
        assert (text.drafts.tokens_per_step or 0) > 1.3
    sys.stdout.write(f"\n{cost.sentence}\n")


def ask_only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Ask these cases only, streamed: all take as long as the rest of a verification."""
    cases = [
        replace(case, ways=[way for way in case.ways if way.streamed])
        for case in CASES
        if case.name in names
    ]
    monkeypatch.setattr(asking, "CASES", cases)


def read_dtype(plan: Path) -> str:
    """Return the dtype that a saved plan names, or else the checkpoint's."""
    decision = LaunchPlan.model_validate_json(plan.read_text()).find("--dtype")
    return decision.value or "" if decision else "bfloat16"


def install_plugin(folder: Path, text: str) -> None:
    """Put the fault where vLLM looks for plugins."""
    about = folder / "planted-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "planted.py").write_text(text)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nplanted = planted:register\n")
