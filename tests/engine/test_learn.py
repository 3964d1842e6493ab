"""`slipstream learn` on the real engine: traffic is kept, a round trained, its drafter offered."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.learning.candidate import LEAST_GAIN, find_gain
from slipstream.learning.generation import GenerationList, LearningFolder
from slipstream.learning.kept_text import read_kept
from tests.engine.narrow_prompts import list_rows
from tests.engine.service import Service
from tests.engine.worn_drafter import make_worn_drafter
from tests.unit.vllm_plugin.gate.pieces import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.weekly]

QUESTIONS, CLIENTS, TOKENS = 40, 8, 24
SECRET = r"\d{6}"
# Of a drafter that was worn, so that there is something to win in a minute.
WEAR, STEPS = 1.2, 20


@pytest.fixture(scope="module")
def service(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("learn")
    served = Service(folder, target)
    worn = make_worn_drafter(folder / "worn", WEAR)
    try:
        served.serve("--drafter", str(worn), "--learn", "--redact", SECRET)
        yield served
    finally:
        served.end()


def ask(service: Service, prompt: str) -> int:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{service.url}/v1/chat/completions"
    return httpx.post(url, json=body, timeout=120).status_code


def find_home(service: Service) -> LearningFolder:
    terms = service.newest[1].terms.learning
    assert terms is not None
    assert terms.folder is not None
    return LearningFolder(terms.folder)


def list_verdicts(service: Service) -> list[str]:
    done = service.command("learn", service.newest[1].id, "--history", "--json")
    listed = GenerationList.model_validate_json(done.stdout)
    return [one.verdict for one in listed.generations]


def learn(service: Service, *words: str) -> "subprocess.CompletedProcess[str]":
    return service.command("learn", service.newest[1].id, *words, check=False)


def test_traffic_is_kept_in_tokens_without_what_is_redacted(
    service: Service, tokenizer: Any
) -> None:
    prompts = [row["prompt"] for row in list_rows()][::7][:QUESTIONS]
    with ThreadPoolExecutor(CLIENTS) as pool:
        codes = list(pool.map(lambda prompt: ask(service, prompt), [*prompts, "My PIN is 123456"]))
    assert {*codes} == {200}
    home = find_home(service)
    # An answer is kept up to a match, and not at all if that leaves too little.
    least = 0.9 * len(prompts)
    service.wait_for(lambda: len(list(read_kept(home.text))) >= least, 30)
    kept = list(read_kept(home.text))
    assert len(kept) <= len(prompts)
    assert max(len(one.answer) for one in kept) == TOKENS
    texts = [tokenizer.decode([*one.prompt.tolist(), *one.answer.tolist()]) for one in kept]
    assert not any(re.search(SECRET, text) for text in texts)
    assert all(file.stat().st_mode & 0o077 == 0 for file in home.text.iterdir())


def test_a_round_ends_with_a_drafter_on_trial_or_with_a_reason(service: Service) -> None:
    done = learn(service, "--once", "--steps", str(STEPS), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    sys.stdout.write(f"\n{done.stderr}\n{told['message']}")
    verdicts = list_verdicts(service)
    assert verdicts[0] == "planned"
    _, run = service.newest
    if verdicts[1:] == ["on trial"]:
        made = find_home(service).find(1)
        assert run.plan.drafter == str(made.drafter)
        gain = find_gain(made.before, made.after, made.shares)
        assert gain >= LEAST_GAIN
        sys.stdout.write(f"\nwalked {gain:+.0%}, {made.seconds:.0f} s")
    else:
        assert run.trial is None
        assert told["message"]
    assert ask(service, "Write a SQL query that lists all cars.") == 200


def test_the_first_drafter_can_be_loaded_again(service: Service) -> None:
    serves = find_home(service).find(0).drafter
    learnt = service.newest[1].plan.drafter != str(serves)
    done = learn(service, "--back", "0")
    assert (done.returncode == 0) is learnt, done.stderr
    assert service.newest[1].plan.drafter == str(serves)
    assert learn(service, "--stop").returncode == 0
    wait_until(lambda: service.newest[1].terms.learning is None)
