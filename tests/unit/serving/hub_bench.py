"""A fake hub with a small model, a cache for what is fetched from it, and what was reported."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.errors import SlipstreamError
from slipstream.serving import download
from slipstream.serving.weights import LocalModel, obtain
from tests.unit.serving.fake_hub import (
    CONFIG,
    NAME,
    FakeHub,
    Fault,
    make_index,
    make_shard,
    run_hub,
)

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
TOKEN = "hf_ThisIsNobodysToken"
NEEDED = {
    "config.json": CONFIG,
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "tokenizer.json": json.dumps({"vocabulary": "ü"}, ensure_ascii=False).encode(),
    "empty.txt": b"",
    INDEX: make_index(FIRST, SECOND),
    FIRST: make_shard(300_000, seed=1),
    SECOND: make_shard(200_000, seed=2),
}
OTHERS = {
    "README.md": b"# A model",
    "modeling.py": b"print('mine now')",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": make_shard(100, seed=3),
    "original/model.safetensors": make_shard(100, seed=4),
    "../../escaped.json": b"{}",
}


class HubBench:
    """Obtains the model, and remembers what was said."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        self.hub, self.cache, self.lines = hub, cache, list[str]()
        self.environment = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN}

    def obtain(self, revision: str | None = None, *, with_code: bool = False) -> LocalModel:
        """Obtain, and forget what was said and asked before."""
        self.lines.clear()
        self.hub.log.clear()
        return obtain(
            NAME,
            revision=revision,
            cache=self.cache,
            environment=self.environment,
            report=self.lines.append,
            with_code=with_code,
        )

    def refuse(self, kind: type[SlipstreamError], revision: str | None = None) -> SlipstreamError:
        """Obtain in vain."""
        with pytest.raises(kind) as caught:
            self.obtain(revision)
        assert type(caught.value) is kind
        return caught.value

    def fail(self, name: str, faults: Sequence[Fault]) -> None:
        """Have the next answers about a file go wrong."""
        self.hub.faults[name] = list(faults)

    def partials(self) -> dict[str, int]:
        """Give the lengths of the files that have not arrived."""
        return {path.name: path.stat().st_size for path in self.cache.rglob("*.partial")}


def is_whole(model: LocalModel) -> bool:
    """Say whether every needed file is there, byte for byte."""
    return all((model.folder / name).read_bytes() == NEEDED[name] for name in NEEDED)


def wait_for_partial(cache: Path) -> None:
    """Wait until a part of the first shard is on the disk."""
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in cache.rglob(f"{FIRST}.partial")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def open_bench(cache: Path) -> Iterator[HubBench]:
    """Serve the model to clients that do not pause and ask no other host."""
    from huggingface_hub import close_session

    with run_hub(NEEDED | OTHERS) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "PAUSES_SECONDS", (0.0, 0.0))
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield HubBench(hub, cache)
    close_session()
