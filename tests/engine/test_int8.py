"""The proving ground's model in 8 bits: the engine serves it, and accepts drafts for it."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.hardware import read_host, this_machine
from slipstream.measuring.client.completions import Request, ask, ask_all
from slipstream.measuring.engine_start import report_usage
from slipstream.planning import make_options, make_plan
from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.proving_ground.int8 import compare_products, make_int8
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.steering.drafts import Drafts

pytestmark = [pytest.mark.engine, pytest.mark.beside]

QUESTIONS = ("Write a Python function that adds two numbers.", "What is a volcano?")


def test_drafts_for_the_model_in_8_bits_are_accepted(target: Path, tmp_path: Path) -> None:
    int8 = make_int8(target)
    assert int8.name == f"{target.name}-W8A8"
    share = compare_products(os.environ)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    drafter = read_checkpoint(str(SHIPPED_DRAFTER), tokenizer=False)
    options = make_options(users=1, context=512, engine=("--enforce-eager",))
    plan = report_usage(make_plan(host, read_checkpoint(str(int8)), drafter, None, options))
    requests = [
        Request(messages=({"role": "user", "content": text},), max_tokens=64) for text in QUESTIONS
    ]
    log = tmp_path / "engine.log"
    with run_engine(plan, log=log, environment={**os.environ, "HF_HUB_OFFLINE": "1"}) as url:
        answers = ask_all(url, requests, ask)
    drafts = Drafts.total(answer.drafts for answer in answers)
    sys.stdout.write(
        f"\n{drafts.tokens_per_step:.2f} tokens per step; a product in 8 bits takes {share:.2f} of "
        "the time of one in float32\n"
    )
    assert 0 < share < 2
    assert drafts.tokens_per_step is not None
    assert drafts.tokens_per_step > 1.4
