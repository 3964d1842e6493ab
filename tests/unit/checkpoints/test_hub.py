"""A checkpoint is read from the hub at one commit, and its weights stay there.

The real huggingface_hub runs against a local server. It takes its endpoint from the
environment when it is imported, so the reading happens in a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.checkpoint import Weights
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.checkpoints.folders import (
    LLAMA,
    TOKENIZER,
    drafter_tensors,
    write_checkpoint,
    write_safetensors,
)
from tests.unit.checkpoints.hub_server import FakeHub, Repository, run_hub

SHA = "0123456789abcdef0123456789abcdef01234567"
BIG = {"model.embed_tokens.weight": ("BF16", (300, 1 << 16)), "lm_head.weight": ("F4", (2, 8))}
NAMES = (
    "maker/target",
    "maker/sharded",
    "maker/drafter",
    "maker/gated",
    "maker/odd-shards",
    "maker/odd-dtype",
    "maker/nothing",
    "maker/not a name",
)

READER = """
import json, sys
from slipstream.checkpoints import read_checkpoint
from slipstream.errors import SlipstreamError

told = {}
for name in sys.argv[1:]:
    try:
        told[name] = read_checkpoint(name).model_dump(mode="json")
    except Exception as fault:
        told[name] = {"error": type(fault).__name__, "message": str(fault)}
        if isinstance(fault, SlipstreamError):
            told[name] |= {"hint": fault.hint, "details": fault.details}
print(json.dumps(told))
"""


def read_in_a_process(home: Path, endpoint: str, *names: str) -> dict[str, dict[str, Any]]:
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    environment = kept | {
        "HOME": str(home),
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    finished = subprocess.run(
        [sys.executable, "-c", READER, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told: dict[str, dict[str, Any]] = json.loads(finished.stdout)
    return told


def lay_out(root: Path) -> dict[str, Repository]:
    target = write_checkpoint(root / "target", LLAMA, tensors=BIG, tokenizer=TOKENIZER)
    sharded = write_checkpoint(root / "sharded", LLAMA)
    shards = {"model-00001-of-00002.safetensors": "a", "model-00002-of-00002.safetensors": "b"}
    for file, tensor in shards.items():
        write_safetensors(sharded / file, {tensor: ("BF16", (1 << 20,))})
    index = {"metadata": {}, "weight_map": {tensor: file for file, tensor in shards.items()}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    config = drafter_config(LLAMA, DrafterShape())
    drafter = write_checkpoint(root / "drafter", config, tensors=drafter_tensors(config))
    odd = write_checkpoint(root / "odd-shards", LLAMA)
    write_safetensors(odd / "output.safetensors", BIG)
    complex_numbers = {"a": ("C64", (4, 4)), "b": ("BF16", (3,))}
    odd_dtype = write_checkpoint(root / "odd-dtype", LLAMA, tensors=complex_numbers)
    return {
        "maker/target": Repository(target, SHA, licence="apache-2.0"),
        "maker/sharded": Repository(sharded, SHA),
        "maker/drafter": Repository(drafter, SHA, licence="mit"),
        "maker/gated": Repository(target, SHA, licence="gemma", gated=True),
        "maker/odd-shards": Repository(odd, SHA),
        "maker/odd-dtype": Repository(odd_dtype, SHA),
    }


@dataclass(frozen=True)
class Visit:
    hub: FakeHub
    told: dict[str, dict[str, Any]]

    def checkpoint(self, name: str) -> Checkpoint:
        return Checkpoint.model_validate(self.told[name])


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    repositories = lay_out(tmp_path_factory.mktemp("hub"))
    with run_hub(repositories) as hub:
        home = tmp_path_factory.mktemp("home")
        yield Visit(hub, read_in_a_process(home, hub.endpoint, *NAMES))


@pytest.mark.parametrize(
    ("name", "licence"),
    [("maker/target", "apache-2.0"), ("maker/sharded", None), ("maker/drafter", "mit")],
)
def test_a_checkpoint_on_the_hub_is_the_one_in_the_folder(
    visit: Visit, name: str, licence: str | None
) -> None:
    folder = visit.hub.repositories[name].folder
    expected = read_checkpoint(str(folder)).model_copy(
        update={"name": name, "revision": SHA, "source": "hub", "licence": licence}
    )
    assert visit.checkpoint(name) == expected


def test_every_file_is_asked_for_at_the_commit_that_the_hub_named_first(visit: Visit) -> None:
    asked = [answer.path for answer in visit.hub.log if "/resolve/" in answer.path]
    assert asked
    assert [path for path in asked if f"/resolve/{SHA}/" not in path] == []


def test_of_the_weights_no_more_than_the_headers_is_fetched(visit: Visit) -> None:
    total = sum(
        path.stat().st_size
        for name in ("maker/target", "maker/sharded")
        for path in visit.hub.repositories[name].folder.glob("*.safetensors")
    )
    served = visit.hub.served_bytes(".safetensors")
    assert total > 40 * 2**20
    assert 0 < served < total / 50


def test_a_repository_that_the_hub_does_not_have_is_missing_with_a_way_out(visit: Visit) -> None:
    fault = visit.told["maker/nothing"]
    assert fault["error"] == "MissingPartError"
    assert fault["message"] == (
        "the hub has no maker/nothing, or does not show it to this user: 401 RepoNotFound"
    )
    assert fault["hint"] == "check the name; for a private or gated model set HF_TOKEN"


def test_a_name_that_the_hub_cannot_have_is_refused(visit: Visit) -> None:
    fault = visit.told["maker/not a name"]
    assert fault["error"] == "InvalidInputError"
    assert fault["message"] == (
        "there is no folder maker/not a name, and it is not the name of a model on the hub"
    )


def test_a_gated_repository_is_missing_with_the_way_to_get_it(visit: Visit) -> None:
    fault = visit.told["maker/gated"]
    assert fault["error"] == "MissingPartError"
    assert fault["message"] == "maker/gated is gated, and this user has no access: 403 GatedRepo"
    assert fault["hint"] == "accept the terms on the hub's page of maker/gated, then set HF_TOKEN"


def test_shards_under_other_names_leave_the_weights_unknown(visit: Visit) -> None:
    assert visit.checkpoint("maker/odd-shards").weights is None


def test_a_dtype_that_nobody_listed_is_added_up_all_the_same(visit: Visit) -> None:
    sizes = {"BF16": 6, "C64": 128}
    expected = Weights(total_bytes=134, bytes_by_dtype=sizes)
    assert visit.checkpoint("maker/odd-dtype").weights == expected


def test_a_hub_that_refuses_connections_is_missing_with_a_way_out(tmp_path: Path) -> None:
    with run_hub({}) as hub:
        closed = hub.endpoint
    fault = read_in_a_process(tmp_path, closed, "maker/target")["maker/target"]
    assert fault["error"] == "MissingPartError"
    assert fault["message"] == "cannot read maker/target from the hub"
    assert fault["details"] == ["ConnectError: [Errno 111] Connection refused"]
    assert "HF_ENDPOINT" in fault["hint"]
