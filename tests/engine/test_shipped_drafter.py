"""The drafter that ships with the package fits its target and drafts for the real engine."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import pair
from slipstream.hardware import read_host, this_machine
from slipstream.measuring.client.completions import Answer, Request, ask, ask_all
from slipstream.planning import make_options, make_plan
from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.steering.drafts import Drafts
from tests.engine.prompts import CHAT_PROMPTS

pytestmark = [pytest.mark.engine, pytest.mark.beside]

MAX_TOKENS = 64
LARGEST_BYTES = 20_000_000


def answer(target: Path, drafter: Path, log: Path) -> dict[str, list[Answer]]:
    """Let the engine answer our prompts, one by one, by kind."""
    plan = make_plan(
        read_host(this_machine(os.environ, datetime.now(UTC))),
        read_checkpoint(str(target)),
        read_checkpoint(str(drafter), tokenizer=False),
        None,
        make_options(
            users=1,
            context=512,
            engine=("--enforce-eager", "--per-request-spec-decode-metrics", "summary"),
        ),
    )
    answers: dict[str, list[Answer]] = {}
    with run_engine(plan, log=log, environment=os.environ) as url:
        ask_all(url, make_requests(["Hello"]), ask)
        for kind, texts in CHAT_PROMPTS.items():
            own = answers.setdefault(kind, [])
            ask_all(
                url,
                make_requests(texts),
                ask,
                on_answer=lambda _, one, own=own: own.append(one),  # type: ignore[misc]
            )
    return answers


def make_requests(texts: list[str] | tuple[str, ...]) -> list[Request]:
    return [
        Request(messages=({"role": "user", "content": text},), max_tokens=MAX_TOKENS)
        for text in texts
    ]


def test_it_is_small_fits_its_target_and_names_no_folder_of_ours(target: Path) -> None:
    faults = pair(read_checkpoint(str(target)), read_checkpoint(str(SHIPPED_DRAFTER))).faults
    assert [fault for fault in faults if fault.verdict == "refuse"] == []
    assert (SHIPPED_DRAFTER / "model.safetensors").stat().st_size <= LARGEST_BYTES
    config = json.loads((SHIPPED_DRAFTER / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "SmolLM2-135M-Instruct"
    assert config["sliding_window_non_causal"] is True
    assert "slipstream train" in (SHIPPED_DRAFTER / "README.md").read_text()


def test_its_drafts_are_accepted_by_the_real_engine(target: Path, tmp_path: Path) -> None:
    for kind, answers in answer(target, SHIPPED_DRAFTER, tmp_path / "drafted.log").items():
        tokens = Drafts.total(one.drafts for one in answers).tokens_per_step or 0
        sys.stdout.write(f"\n{kind}: {tokens:.2f} tokens per step")
        assert tokens > 1.3, kind
