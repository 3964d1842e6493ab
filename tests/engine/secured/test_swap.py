"""Another drafter in the real engine, under load: no request fails, and no text changes."""

import json
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree

import httpx
import pytest

from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.swaps import Swap
from tests.engine.secured.conftest import Secured
from tests.untrained_drafter import DrafterShape, make_untrained_drafter

pytestmark = pytest.mark.engine

PROMPTS = (
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n",
    "The days of the week are Monday, Tuesday, Wednesday,",
    "Once upon a time there was a lighthouse keeper who",
    "SELECT name, price FROM products WHERE",
)
TOKENS = 32
# Where the shipped drafter reads the target, counted from the first layer's output.
LAYERS = (1, 8, 15, 21, 27)
ROUTES = ("start_draft_weight_update", "update_weights", "finish_weight_update", "pause")


@dataclass
class Streams:
    """Clients that ask one prompt each, over and over, until they are told to stop."""

    secured: Secured
    texts: list[list[str]] = field(default_factory=lambda: [[] for _ in PROMPTS])
    failures: list[str] = field(default_factory=list)
    longest_gap: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run_beside(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._ask, args=(at,)) for at in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        return threads

    def _ask(self, at: int) -> None:
        context = TlsCertificate(self.secured.pair.file, self.secured.pair.key).pin()
        with open_client(self.secured, context) as client:
            while True:
                try:
                    self.texts[at].append(self._stream(client, PROMPTS[at]))
                except (httpx.HTTPError, ValueError, LookupError) as fault:
                    self.failures.append(repr(fault))
                if self.stop.is_set():
                    return

    def _stream(self, client: httpx.Client, prompt: str) -> str:
        """Read one answer, and how long its tokens let it wait."""
        body = {
            **{"model": self.secured.service.target.name, "prompt": prompt, "stream": True},
            **{"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True},
        }
        text, last = "", None
        with client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - (last or now))
                text, last = text + json.loads(line[6:])["choices"][0]["text"], now
        return text


def open_client(secured: Secured, context: ssl.SSLContext) -> httpx.Client:
    url = f"https://127.0.0.1:{secured.service.port}"
    return httpx.Client(base_url=url, verify=context, trust_env=False, timeout=120)


def swap(secured: Secured, *words: str) -> tuple[int, Swap]:
    _, run = secured.service.newest
    done = secured.service.command("swap", run.id, *words, "--json", check=False)
    assert done.stdout, done.stderr
    return done.returncode, Swap.model_validate_json(done.stdout)


@pytest.fixture
def drafted(secured: Secured) -> Iterator[None]:
    """Have drafts in every step, whether or not they pay under these streams."""
    _, run = secured.service.newest
    secured.service.command("swap", run.id, "--k", "3-7")
    yield
    secured.service.command("swap", run.id, "--k", "any")


@pytest.mark.usefixtures("drafted")
def test_a_drafter_is_swapped_under_load_and_a_useless_one_back(
    secured: Secured, target: Path, tmp_path: Path
) -> None:
    shape = DrafterShape(layers=3, intermediate_size=1024, target_layer_ids=LAYERS)
    noise = make_untrained_drafter(target, tmp_path / "noise", shape)
    copy = copytree(SHIPPED_DRAFTER, tmp_path / "copy")

    alone = Streams(secured)
    alone.stop.set()
    for thread in alone.run_beside():
        thread.join()
    beside = Streams(secured)
    threads = beside.run_beside()
    useless, same = swap(secured, str(noise)), swap(secured, str(copy))
    beside.stop.set()
    for thread in threads:
        thread.join()
    asked = sum(map(len, beside.texts))
    sys.stdout.write(
        f"\n{asked} requests, {len(beside.failures)} failed; longest gap between tokens "
        f"{beside.longest_gap:.2f} s, {alone.longest_gap:.2f} s without a swap\n"
        f"{useless[1].to_json()}\n{same[1].to_json()}\n{read_loads(secured)}"
    )
    assert alone.failures == beside.failures == []
    assert [set(texts) for texts in beside.texts] == [set(texts) for texts in alone.texts]
    assert asked >= 2 * len(PROMPTS)

    assert (useless[0], useless[1].outcome) == (4, "swapped-back")
    assert useless[1].tokens_per_step_after == 1.0
    assert (same[0], same[1].outcome) == (0, "swapped")
    before, after = same[1].tokens_per_step_before, same[1].tokens_per_step_after
    assert before is not None
    assert after is not None
    assert min(before, after) > 1.3
    assert same[1].load_seconds is not None
    assert same[1].load_seconds < 5

    _, run = secured.service.newest
    served = [one.folder.name for one in run.drafters]
    assert served == [SHIPPED_DRAFTER.name, "noise", SHIPPED_DRAFTER.name, "copy"]
    assert run.plan.drafter == str(copy)
    assert secured.service.find_processes()["core"] > 0
    assert run.restarts == 0


def read_loads(secured: Secured) -> list[str]:
    """Return how long the engine itself says that it loaded."""
    log = secured.service.newest[0].engine_log.read_text()
    return re.findall(r"was loaded in \d+ ms", log)


def test_no_client_reaches_the_routes_of_weight_transfer(secured: Secured) -> None:
    context = TlsCertificate(secured.pair.file, secured.pair.key).pin()
    with open_client(secured, context) as client:
        codes = [client.post(f"/{route}", json={}).status_code for route in ROUTES]
    assert codes == [httpx.codes.NOT_FOUND] * len(ROUTES)


def test_back_returns_to_the_drafter_before(secured: Secured) -> None:
    code, returned = swap(secured, "--back")
    assert (code, returned.outcome) == (0, "swapped")
    assert returned.serves == str(SHIPPED_DRAFTER)
    assert secured.service.newest[1].plan.drafter == str(SHIPPED_DRAFTER)
