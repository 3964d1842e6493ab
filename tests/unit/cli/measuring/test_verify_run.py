"""`verify` of a run: the server judges its own text, without a second engine."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.hardware import load_host
from slipstream.measuring.verifying.served_check import ServedCheck
from slipstream.planning import LaunchPlan
from slipstream.serving.access.keys import make_key, read_keys
from slipstream.serving.run import Run, RunFolder, Terms, read_process
from tests.unit.cli.measuring.test_verify import pair
from tests.unit.measuring.verifying.toy_engine import ToyEngine, run_toy, spoil

NOW = datetime(2026, 11, 16, tzinfo=UTC)
__all__ = ["pair"]


class CountingToy(ToyEngine):
    """Drafts with every answer, and has some accepted."""

    def read(self, path: str) -> str:
        if path != "/metrics":
            return super().read(path)
        names = ("drafts", "accepted_tokens")
        count = len(self.bodies)
        return "".join(f"vllm:spec_decode_num_{name}_total{{}} {count}.0\n" for name in names)


def check(
    folder: Path, engine: ToyEngine, pair: list[str], capsys: pytest.CaptureFixture[str]
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


def test_a_sound_server_passes(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = CountingToy()
    code, told = check(tmp_path, engine, pair, capsys)
    assert code == 0
    assert told.passed
    assert told.regret.faults == 0
    assert told.counts.accepted
    assert told.sentence.startswith(f"Each of {told.regret.tokens} tokens is the target's own")
    judged = [body for body in engine.bodies if "prompt_logprobs" in body]
    assert len(judged) == told.regret.answers


def test_a_server_whose_drafts_change_the_text_fails(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = check(tmp_path, CountingToy(choose=spoil), pair, capsys)
    assert code == 4
    assert not told.passed
    assert "tokens are not the target's own" in told.sentence


def test_a_run_that_does_not_serve_is_named(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, CountingToy(), pair, capsys)
    folder = RunFolder(tmp_path / "run")
    folder.write(folder.read().model_copy(update={"url": None}))
    assert run(["verify", str(folder.path)], {}) == 1
    assert "toy-1 does not serve" in capsys.readouterr().err
    assert run(["verify", str(folder.path), "--html", "page.html"], {}) == 2
    assert json.loads(folder.record.read_text())["id"] == "toy-1"
