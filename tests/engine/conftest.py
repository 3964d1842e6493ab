"""The proving ground's model, its drafters, the arms and a server, each made once a session."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slipstream.proving_ground import make_smollm2
from slipstream.user_folders import slipstream_cache
from tests.engine.arms.launch import end_preloaded
from tests.engine.offline import Arm, run_arm, speculative_config
from tests.engine.prompts import CHAT_PROMPTS, ECHOED_WORD, REPETITIONS
from tests.engine.server import Server, run_server
from tests.untrained_drafter import DrafterShape, make_untrained_drafter

RunArm = Callable[[str, str], Arm]
LONGEST = ("test_verify.py", "test_tune.py")

# A shell's background job ignores interrupts, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Whoever ends the tests ends what they started: every fixture is torn down as after Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)


def share_cores(environment: Mapping[str, str]) -> None:
    """Pin this worker and all that it starts to its share of the cores.

    Neither the planner nor vLLM nor the watch over a busy machine counts any other.
    """
    worker, count = environment["PYTEST_XDIST_WORKER"], environment["PYTEST_XDIST_WORKER_COUNT"]
    cores = sorted(os.sched_getaffinity(0))
    own = cores[int(worker.removeprefix("gw")) % len(cores) :: int(count)]
    os.sched_setaffinity(0, own)


if "PYTEST_XDIST_WORKER" in os.environ:
    share_cores(os.environ)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: begun last, one runs beside a worker with nothing to do."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session", autouse=True)
def preloaded() -> Iterator[None]:
    """End what runs the arms' scripts with the session."""
    yield
    end_preloaded()


@pytest.fixture(scope="session")
def target() -> Path:
    return make_smollm2(slipstream_cache(os.environ))


@pytest.fixture(scope="session")
def tokenizer(target: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(target)


@pytest.fixture(scope="session")
def prompts(tokenizer: Any) -> list[list[int]]:
    """Return half of every kind of prompt: one batch."""
    asked = [text for texts in CHAT_PROMPTS.values() for text in texts]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in asked
    ]
    return [*chats, *(tokenizer.encode(text) for text in REPETITIONS)][::2]


@pytest.fixture(scope="session")
def drafters(
    target: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return two untrained drafters: noise, whose drafts all fail, and one that echoes a word."""
    (echoed,) = tokenizer.encode(ECHOED_WORD)
    shapes = {
        "noise": DrafterShape(layers=2),
        "echo": DrafterShape(layers=2, weight_scale=0.002, mask_token_id=echoed),
    }
    folder = tmp_path_factory.mktemp("drafters")
    return {
        name: make_untrained_drafter(target, folder / name, shape) for name, shape in shapes.items()
    }


@pytest.fixture(scope="session")
def arm(
    target: Path,
    drafters: dict[str, Path],
    prompts: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> RunArm:
    """Return a function that runs an arm (`plain` or a drafter's name) in a dtype once."""
    done: dict[tuple[str, str], Arm] = {}

    def outcome(dtype: str, name: str) -> Arm:
        if (dtype, name) not in done:
            scratch = tmp_path_factory.mktemp(f"{dtype}-{name}")
            drafter = drafters.get(name)
            speculation = speculative_config(drafter) if drafter else None
            done[dtype, name] = run_arm(target, dtype, prompts, scratch, speculation)
        return done[dtype, name]

    return outcome


@pytest.fixture(scope="session")
def server(
    target: Path, drafters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with run_server(
        target, drafters["echo"], tmp_path_factory.mktemp("server") / "engine.log"
    ) as running:
        yield running
