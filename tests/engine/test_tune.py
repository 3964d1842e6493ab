"""`slipstream tune` on the real engine: three starts, a choice, and a plan that says `measured`."""

import sys
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.tuning.tuner import Tuning

pytestmark = [pytest.mark.engine, pytest.mark.beside]

LENGTH = "--speculative-config.num_speculative_tokens"
OPTIONS = ("--context", "512", "--users", "4", "--concurrency", "2")
ASKED = ("--workload", "code", "prose", "--prompts", "3", "--max-tokens", "16")


def test_three_starts_give_a_profile_and_a_plan_with_its_figures(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "tuned.json"
    words = ["tune", str(target), "--drafter", str(SHIPPED_DRAFTER), *OPTIONS, *ASKED]
    files = ["--save", str(saved), "--html", str(tmp_path / "it.html"), "--json"]
    assert run([*words, *files, "--", "--enforce-eager"], {}) == 0
    done = Tuning.model_validate_json(capsys.readouterr().out)
    off = [f"{one.draft_length}: {one.off_by:+.1%}" for one in done.profile.confirmations]
    sys.stdout.write(f"\n{done.profile.choice.reasons}, served and foretold differ by {off}")

    assert len(done.starts) == 3
    assert {start.draft_length > 0 for start in done.starts} == {True, False}
    assert {one.draft_length for one in done.profile.predictions} == set(range(8))
    chosen = done.profile.choice.draft_length
    assert chosen in {one.draft_length for one in done.profile.confirmations}
    tokens = done.profile.model.predict(7, 1).tokens_per_step
    assert 1.2 < tokens < 4  # SHIPPED_DRAFTER drafts in earnest
    plan = LaunchPlan.model_validate_json(saved.read_text())
    assert plan == done.plan
    told = plan.find(LENGTH)
    assert (told.value, told.source) == (str(chosen), "measured") if told else chosen == 0
    assert "<svg" in (tmp_path / "it.html").read_text()
