"""Every verb takes its weights the same way, before an engine starts; as a user types it."""

import json
import os
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.cli.screen import Screen
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.checkpoints.hub_server import FakeHub, Fault, Repository, run_hub
from tests.unit.proving_ground.test_untrained_drafter import TARGET as TARGET_CONFIG
from tests.unit.serving.weights.pieces import flip, make_shard

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

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET_CONFIG}
    repositories = {}
    for name, content in (("target", config), ("drafter", drafter_config(config, DrafterShape()))):
        folder = tmp_path / "remote" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(content))
        (folder / "model.safetensors").write_bytes(make_shard(1000, seed=len(name)))
        repositories[f"maker/{name}"] = Repository(folder, COMMIT)
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
    hub: FakeHub, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hub.repositories["maker/target"].folder
    hub.repositories["maker/target"] = Repository(folder, COMMIT, gated=True)
    assert run([verb, *PAIR], os.environ) == 1
    assert capsys.readouterr().err.endswith(
        "hint: accept the terms on the hub's page of maker/target, then set HF_TOKEN\n"
    )
    assert not (tmp_path / "seen.json").exists()


def test_a_shard_that_comes_wrong_starts_no_engine(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The whole of a file is asked for without a range; its header alone is not.
    wrong = make_shard(1000, seed=9)
    hub.faults["model.safetensors"] = [Fault(change=lambda _: wrong)] * 9
    assert run(["compare", *PAIR], os.environ) == 1
    assert "wrong checksum twice" in capsys.readouterr().err
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
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", *PAIR, "--host", "cpu-server", "--json"], os.environ) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    volume = tmp_path / "volume"
    monkeypatch.setenv("HF_HUB_CACHE", str(volume / "hub"))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(volume / "slipstream"))
    assert run(["deploy", "prepare", "plan.json"], os.environ) == 0
    assert capsys.readouterr().out.count("is here and checked") == 2
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


def test_a_line_is_rewritten_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = StringIO()
    screen = Screen(output=sys.stdout, messages=messages)
    assert not screen.live
    monkeypatch.setattr(messages, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    assert screen.live
    screen.draw("x" * 40)
    assert messages.getvalue() == f"\r{'x' * 19}\033[K"
