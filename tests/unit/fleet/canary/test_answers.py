"""Answers that the target would not have given are counted against the other arm's."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slipstream.cli.main import run
from slipstream.fleet.canary.answers import (
    AnswerRegret,
    AnswerSample,
    compare_answers,
    find_tail,
    sample_answers,
)
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.serving.run import read_process
from tests.unit.measuring.verifying.toy_engine import ToyEngine, run_toy, spoil
from tests.unit.serving.kept_runs import keep


def sample(*worst: float) -> AnswerSample:
    return AnswerSample(
        answers=tuple(
            AnswerRegret(prompt_id=str(number), tokens=10, worst=one)
            for number, one in enumerate(worst)
        )
    )


def test_a_sound_server_has_no_regret_and_a_broken_one_has() -> None:
    with run_toy(ToyEngine()) as url:
        sound = sample_answers(Endpoint(url), 4)
    with run_toy(ToyEngine(choose=spoil)) as url:
        broken = sample_answers(Endpoint(url), 4)
    assert {one.worst for one in sound.answers} == {0.0}
    assert {one.prompt_id for one in sound.answers} == {one.prompt_id for one in broken.answers}
    assert max(one.worst for one in broken.answers) > 1


@pytest.mark.parametrize(("faults", "is_worse"), [(7, False), (8, True)])
def test_eight_faults_of_the_canary_alone_are_not_chance(faults: int, is_worse: bool) -> None:
    canary, others = sample(*[2.0] * faults, *[0.1] * (24 - faults)), sample(*[0.1] * 24)
    found = compare_answers(canary, others, dtype="bfloat16", error=0.005)
    assert (found.answers, found.tokens, found.canary_faults) == (24, 240, faults)
    assert found.is_worse is is_worse


def test_faults_of_both_arms_say_nothing() -> None:
    both = sample(*[2.0] * 24)
    found = compare_answers(both, both, dtype="bfloat16", error=0.005)
    assert (found.canary_faults, found.other_faults) == (24, 24)
    assert not found.is_worse


def test_only_prompts_that_both_answered_are_compared() -> None:
    found = compare_answers(sample(2.0, 2.0), sample(0.0), dtype="float32", error=0.005)
    assert found.answers == 1


def test_heads_of_a_fair_coin() -> None:
    assert find_tail(0, 0) == 1.0
    assert find_tail(8, 8) == 1 / 256
    assert find_tail(1, 2) == 0.75


def test_the_command_asks_the_run_at_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with run_toy(ToyEngine()) as url:
        keep(tmp_path / "slipstream" / "runs", supervisor=read_process(os.getpid()), url=url)
        port = str(urlsplit(url).port)
        assert run(["fleet", "answers", "--port", port, "--number", "1", "--json"], {}) == 0
    found = AnswerSample.model_validate_json(capsys.readouterr().out)
    assert [one.worst for one in found.answers] == [0.0]
    assert found.answers[0].tokens > 0
