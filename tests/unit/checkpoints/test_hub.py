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
from slipstream.checkpoints.hub import name_stem, parse_base_models
from tests.unit.checkpoints.folders import (
    LLAMA,
    TOKENIZER,
    drafter_tensors,
    write_checkpoint,
    write_safetensors,
)
from tests.unit.checkpoints.hub_server import FakeHub, Repository, run_hub
from tests.untrained_drafter import DrafterShape, drafter_config

SHA = "0123456789abcdef0123456789abcdef01234567"
BIG = {"model.embed_tokens.weight": ("BF16", (300, 1 << 16)), "lm_head.weight": ("F4", (2, 8))}
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
        names = (*repositories, "maker/nothing", "maker/not a name")
        yield Visit(hub, read_in_a_process(home, hub.endpoint, *names))


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


@pytest.mark.parametrize(
    ("name", "error", "message", "hint"),
    [
        ("maker/nothing", "MissingPartError", "the hub has no maker/nothing", "check the name"),
        ("maker/gated", "GatedModelError", "maker/gated is gated", "accept the terms on"),
        ("maker/not a name", "InvalidInputError", "there is no folder maker/not", "name a folder"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_way_out(
    visit: Visit, name: str, error: str, message: str, hint: str
) -> None:
    fault = visit.told[name]
    assert fault["error"] == error
    assert fault["message"].startswith(message)
    assert fault["hint"].startswith(hint)
    assert ("HF_TOKEN" in fault["hint"]) is (error != "InvalidInputError")


def test_odd_shards_leave_the_weights_unknown_and_an_odd_dtype_is_added_up(visit: Visit) -> None:
    assert visit.checkpoint("maker/odd-shards").weights is None
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


@pytest.mark.parametrize(
    ("build", "model"),
    [
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "Qwen/Qwen3-30B-A3B"),
        ("saricles/Qwen3-Coder-Next-NVFP4-GB10", "Qwen/Qwen3-Coder-Next"),
        ("cyankiwi/gemma-4-26B-A4B-it-AWQ-4bit", "google/gemma-4-26B-A4B-it"),
        ("Intel/Qwen3.5-35B-A3B-int4-AutoRound", "Qwen/Qwen3.5-35B-A3B"),
        ("unsloth/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "meta-llama/Llama-3.1-8B-Instruct"),
        ("RadixArk/Qwen3.8-27B-NVFP4-BF16-LMHead", "Qwen/Qwen3.8-27B"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "Qwen/Qwen3-8B"),
        ("turboderp/GLM-5.3-Flash-exl3", "zai-org/GLM-5.3-Flash"),
        ("somebody/Qwen3-8B-4.75bit", "Qwen/Qwen3-8B"),
        ("./models/Qwen3-8B/", "Qwen/Qwen3-8B"),
    ],
)
def test_a_build_has_the_stem_of_its_model(build: str, model: str) -> None:
    assert name_stem(build) == name_stem(model)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"),
        ("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
        ("Qwen/Qwen3.5-27B", "Qwen/Qwen3.6-27B"),
        ("poolside/Laguna-S-2.1", "poolside/Laguna-XS-2.1"),
    ],
)
def test_another_model_has_another_stem(one: str, other: str) -> None:
    assert name_stem(one) != name_stem(other)


def test_a_name_that_is_only_a_build_word_is_left() -> None:
    assert name_stem("somebody/fp8") == "fp8"


def card(front_matter: str) -> bytes:
    return f"---\n{front_matter}\n---\n# A model\n".encode()


@pytest.mark.parametrize(
    ("front_matter", "names"),
    [
        ("base_model: Qwen/Qwen3-8B", ("Qwen/Qwen3-8B",)),
        ("license: mit\nbase_model:\n- Qwen/Qwen3-8B\n- a/b\n", ("Qwen/Qwen3-8B", "a/b")),
        ("base_model: [a/b, a/b]", ("a/b",)),
        ("base_model: Qwen3-8B", None),
        ("base_model: ../../etc/passwd", None),
        ("base_model: {a: b}", None),
        ("base_model: [1, null, [a/b]]", None),
        ("license: mit", None),
        ("- a list", None),
        ("base_model: [a/b", None),
        ("base_model: !!python/object/apply:os.system [false]", None),
        (
            "base_model: [" + ", ".join(f"a/{at}" for at in range(9)) + "]",
            ("a/0", "a/1", "a/2", "a/3"),
        ),
        ("[" * 5000, None),
    ],
)
def test_names_of_repositories_are_taken_and_few(
    front_matter: str, names: tuple[str, ...] | None
) -> None:
    assert parse_base_models(card(front_matter)) == names


@pytest.mark.parametrize(
    "content", [None, b"", b"# A model\n", b"\xff---\n", b"---\nbase_model: a/b\n"]
)
def test_a_readme_without_front_matter_names_nothing(content: bytes | None) -> None:
    assert parse_base_models(content) is None


def test_the_card_of_a_folder_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", LLAMA)
    assert read_checkpoint(str(folder)).base_models is None
    (folder / "README.md").write_bytes(card("base_model: Qwen/Qwen3-8B"))
    assert read_checkpoint(str(folder)).base_models == ("Qwen/Qwen3-8B",)
