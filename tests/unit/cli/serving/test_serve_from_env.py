"""`serve --from-env` as the container runs it: AEON-7's line, with an engine that pretends."""

import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.hardware import load_host
from slipstream.serving.access.keys import find_key_file, make_key, read_keys
from slipstream.serving.run import Run
from slipstream.serving.service.container import decide_bind
from slipstream.serving.supervision.engine_process import choose_port
from tests.unit.cli.serving.test_serve import (
    find_runs,
    pair,  # noqa: F401 a fixture that every test here uses
    serve_until_ready,
)
from tests.unit.planning.settings.test_container_variables import CONTAINER
from tests.unit.serving.supervision.fake_engine import PROGRAM
from tests.untrained_drafter import DrafterShape, drafter_config

Capture = pytest.CaptureFixture[str]

SECRET = "5e" * 32
TELL_KEY = """
import os, pathlib
pathlib.Path(os.environ["FAKE"], "key").write_text(os.environ.get("VLLM_API_KEY", "none"))
"""


@pytest.fixture(autouse=True)
def network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """Be in a container with a network of its own, with AEON-7's variables and a pair for them."""
    request.getfixturevalue("pair")
    for name in CONTAINER.keys() | {"VLLM_API_KEY", "EXTRA_ARGS", "ENABLE_TURBOQUANT"}:
        monkeypatch.delenv(name, raising=False)
    names = {"MODEL_PATH": "target", "DFLASH_DRAFTER": "drafter"}
    for name, text in {**CONTAINER, **names}.items():
        monkeypatch.setenv(name, text)
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    config["max_position_embeddings"] = 65536
    drafter = drafter_config(config, DrafterShape(block_size=16))
    for folder, content in (("target", config), ("drafter", drafter)):
        (tmp_path / folder / "config.json").write_text(json.dumps(content))
    api_server = tmp_path / "fake" / "vllm" / "entrypoints" / "openai" / "api_server.py"
    api_server.write_text(TELL_KEY + PROGRAM)
    interfaces = tmp_path / "net"
    (interfaces / "eth0").mkdir(parents=True)
    monkeypatch.setattr(
        "slipstream.cli.serving.serve.decide_bind", partial(decide_bind, interfaces=interfaces)
    )
    here = load_host("cpu-server").model_copy(update={"container": "docker"})
    monkeypatch.setattr("slipstream.cli.serving.serve.read_host", lambda _: here)
    return interfaces


def serve() -> Run:
    """Serve as the image does, but at a free port, until it is ready."""
    assert serve_until_ready("--from-env", "--port", str(choose_port(None))) == 0
    return find_runs()[0]


def flags_of(served: Run) -> dict[str, str | None]:
    return {decision.flag: decision.value for decision in served.plan.decisions}


def test_the_published_line_is_served_with_every_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    flags = flags_of(serve())
    assert flags["--served-model-name"] == CONTAINER["SERVED_MODEL_NAME"]
    assert flags["--max-model-len"] == CONTAINER["MAX_MODEL_LEN"]
    assert flags["--max-num-seqs"] == CONTAINER["MAX_NUM_SEQS"]
    assert flags["--max-num-batched-tokens"] == CONTAINER["MAX_NUM_BATCHED_TOKENS"]
    assert flags["--speculative-config.num_speculative_tokens"] == "15"
    assert flags["--host"] == "0.0.0.0"
    told = capsys.readouterr().err
    assert told.index("/drafter\n") < told.index("ready at http://127.0.0.1:")


def test_the_variables_key_opens_the_server_and_is_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    file = serve().terms.keys_file
    assert file is not None
    assert [key.name for key in read_keys(file)] == ["VLLM_API_KEY"]
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    assert (tmp_path / "fake" / "key").read_text() == "none"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_without_a_key_it_says_what_to_type_and_starts_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    assert run(["serve", "--from-env"], os.environ) == 1
    assert capsys.readouterr().err.endswith(
        "hint: docker run --rm --log-driver none -v slipstream:/var/lib/slipstream IMAGE keys new, "
        "then -v slipstream:/var/lib/slipstream here too\n"
    )
    assert find_runs() == []
    assert list((tmp_path / "fake").glob("start-*")) == []


def test_without_a_key_the_hosts_network_serves_this_machine(network: Path) -> None:
    (network / "eth0" / "device").mkdir()
    assert flags_of(serve())["--host"] == "127.0.0.1"


def test_a_key_file_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    file = find_key_file(os.environ)
    make_key(file, "mine", now=datetime.now(UTC), expires=None)
    served = serve()
    assert served.terms.keys_file == file
    assert flags_of(served)["--host"] == "0.0.0.0"


def test_an_address_of_ones_own_goes_before_the_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXTRA_ARGS", "--host 127.0.0.1")
    assert flags_of(serve())["--host"] == "127.0.0.1"


def test_a_run_is_served_again_with_the_key_that_it_was_handed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    first = serve()
    monkeypatch.delenv("VLLM_API_KEY")
    assert first.terms.keys_file is not None
    assert serve_until_ready(str(first.terms.keys_file.parent)) == 0
    assert find_runs()[0].terms == first.terms


@pytest.mark.parametrize("words", [[], ["--from-env"]])
def test_without_a_target_it_says_how_to_name_one(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.delenv("MODEL_PATH")
    assert run(["serve", *words], os.environ) == 2
    told = capsys.readouterr().err
    assert "TARGET is missing" in told
    assert "MODEL_PATH" in told


def test_a_unit_is_not_made_of_variables(capsys: Capture) -> None:
    assert run(["serve", "--from-env", "--unit"], os.environ) == 2
    assert "a unit needs a saved plan" in capsys.readouterr().err
