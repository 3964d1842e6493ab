"""Every verb takes its weights the same way, before an engine starts; as a user types it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cli.main import run
from tests.unit.checkpoints.hub_server import FakeHub, Repository, run_hub
from tests.unit.cli.pairs import write_pair
from tests.unit.serving.weights.pieces import flip

Capture = pytest.CaptureFixture[str]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAIR = ["maker/target", "--drafter", "maker/drafter"]
# It leaves what it was started with, and ends.
ENGINE = """
import json, os, pathlib, sys
seen = {"words": sys.argv[1:], "environment": dict(os.environ)}
pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(seen))
sys.exit(1)
"""


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve a pair that fits, to a user who has nothing yet."""
    from huggingface_hub import close_session

    (tmp_path / "remote").mkdir()
    write_pair(tmp_path / "remote", weights=True)
    repositories = {
        f"maker/{name}": Repository(tmp_path / "remote" / name, COMMIT)
        for name in ("target", "drafter")
    }
    package = tmp_path / "fake" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for part in (package, *package.parents[:2]):
        (part / "__init__.py").touch()
    (package / "api_server.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    for name in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("SLIPSTREAM_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    cache = tmp_path / "cache" / "huggingface" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.chdir(tmp_path)
    with run_hub(repositories) as opened:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", opened.endpoint)
        address = f"{opened.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setenv("HF_ENDPOINT", opened.endpoint)
        yield opened
    close_session()


def value_of(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("verb", ["verify", "compare", "tune"])
def test_an_engine_starts_offline_from_what_was_fetched_and_checked(
    hub: FakeHub, tmp_path: Path, verb: str
) -> None:
    assert run([verb, *PAIR, "--context", "512"], os.environ) == 3
    seen = json.loads((tmp_path / "seen.json").read_text())
    snapshot = tmp_path / "cache/huggingface/hub/models--maker--target/snapshots" / COMMIT
    assert value_of(seen["words"], "--model") == str(snapshot)
    names = seen["words"].index("--served-model-name")
    assert seen["words"][names + 1 : names + 3] == ["target", "maker/target"]
    assert seen["environment"]["HF_HUB_OFFLINE"] == "1"
    assert seen["environment"]["VLLM_NO_USAGE_STATS"] == "1"
    assert len(list((tmp_path / "cache/slipstream/locks").iterdir())) == 2
    assert hub.fetched().count("model.safetensors") >= 2


@pytest.mark.parametrize("verb", ["plan", "serve", "verify", "compare", "tune"])
def test_a_gated_model_names_its_terms_in_every_verb(
    hub: FakeHub, tmp_path: Path, verb: str, capsys: Capture
) -> None:
    folder = hub.repositories["maker/target"].folder
    hub.repositories["maker/target"] = Repository(folder, COMMIT, gated=True)
    assert run([verb, *PAIR], os.environ) == 1
    assert capsys.readouterr().err.endswith(
        "hint: accept the terms on the hub's page of maker/target, then set HF_TOKEN\n"
    )
    assert not (tmp_path / "seen.json").exists()


def test_a_second_command_starts_offline_from_the_cache(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["verify", *PAIR, "--context", "512"], os.environ) == 3
    (tmp_path / "seen.json").unlink()
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(["compare", *PAIR, "--context", "512"], os.environ) == 3
    assert (tmp_path / "seen.json").exists()
    assert hub.log == []


def test_a_pod_fetches_once_and_then_only_compares(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert run(["plan", *PAIR, "--host", "cpu-server", "--json"], os.environ) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    volume = tmp_path / "volume"
    monkeypatch.setenv("HF_HUB_CACHE", str(volume / "hub"))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(volume / "slipstream"))
    assert run(["deploy", "prepare", "plan.json"], os.environ) == 0
    assert capsys.readouterr().out.count("is downloaded and checked") == 2
    locks = {file: file.stat().st_mtime_ns for file in (volume / "slipstream/locks").iterdir()}
    assert len(locks) == 2
    # The engine's container: no network, and a volume that it can only read.
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(["deploy", "prepare", "plan.json"], os.environ) == 0
    assert hub.log == []
    assert {file: file.stat().st_mtime_ns for file in locks} == locks
    (shard,) = (volume / "hub/models--maker--drafter/snapshots").glob("*/model.safetensors")
    content = shard.read_bytes()
    shard.resolve().write_bytes(flip(content))
    assert run(["deploy", "prepare", "plan.json"], os.environ) == 1
    assert "download it again" in capsys.readouterr().err
