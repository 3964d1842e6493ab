"""`slipstream swap` as a user types it, through the supervisor and the gate, with its outcome."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.hardware import Host, load_host
from slipstream.serving.run import Process, read_process
from slipstream.serving.run_status import RunStatus
from slipstream.serving.supervision import engine_life, supervisor
from slipstream.serving.supervision.swapping import swapping
from slipstream.serving.swaps import Swap
from slipstream.steering.state import SteeringOrder
from tests.unit.checkpoints.pairs import NATIVE
from tests.unit.serving.kept_runs import keep
from tests.unit.serving.supervision.fake_engine import Stage
from tests.unit.serving.supervision.swapping.test_swapping import Noisy, Theatre
from tests.unit.vllm_plugin.gate.test_swaps import Client
from tests.unit.vllm_plugin.steering.reports import make_state

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def host() -> Host:
    return load_host("gb10").model_copy(update={"accelerators": ()})


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(swapping, "LOOK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(engine_life, "WATCH_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(engine_life, "READ_LOG_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "SETTLED_SECONDS", 0.1)
    return tmp_path / "slipstream" / "runs"


@pytest.fixture
def here() -> Process:
    process = read_process(os.getpid())
    assert process is not None
    return process


@pytest.fixture
def theatre(tmp_path: Path, host: Host, here: Process) -> Theatre:
    theatre = Theatre(tmp_path / "slipstream", host)
    theatre.stage.event_log.update(supervisor=here, id="one")
    return theatre


def type_all(theatre: Theatre, *commands: list[str]) -> list[int]:
    """Type commands one after the other beside a run that serves, and return their exit codes."""
    codes: list[int] = []

    async def act(stage: Stage) -> None:
        for words in commands:
            codes.append(await asyncio.to_thread(run, words, {}))

    theatre.serve(act)
    return codes


def test_a_drafter_is_swapped_in_and_back(theatre: Theatre, capsys: Capture) -> None:
    new, old = str(theatre.new), str(theatre.old)
    codes = type_all(
        theatre,
        ["swap", "one", new, "--json"],
        ["status", "one"],
        ["swap", "o", "--back"],
        ["status", "one", "--json"],
    )
    assert codes == [0, 0, 0, 0]
    assert theatre.client.loaded == [new, old]
    told = capsys.readouterr()
    document, end = json.JSONDecoder().raw_decode(told.out)
    swap = Swap.model_validate(document)
    assert (swap.outcome, swap.drafter, swap.tokens_per_step_after) == ("swapped", new, 2.0)
    assert f"{new} since 20" in told.out[end:]
    status = RunStatus.model_validate_json(told.out[told.out.rindex("\n{\n") :])
    assert [str(one.folder) for one in status.drafters] == [old, new, old]
    assert status.drafter == old
    assert "with a test request before and after" in told.err


def test_a_drafter_that_does_not_fit_is_refused(theatre: Theatre, capsys: Capture) -> None:
    other = theatre.make(theatre.new.with_name("other"), NATIVE | {"block_size": 16})
    assert type_all(theatre, ["swap", "one", str(other)]) == [1]
    told = capsys.readouterr().err
    assert "error: swap-settings: " in told
    assert "block_size is 16, not 8" in told
    assert f"hint: stop the run, then slipstream serve TARGET --drafter {other}" in told
    assert theatre.client.calls == []


def test_an_engine_that_could_not_load_it_leaves_with_3(theatre: Theatre) -> None:
    theatre.client = Client(lambda info: info["folder"].endswith("new") and not info["check_only"])
    assert type_all(theatre, ["swap", "one", str(theatre.new)]) == [3]


def test_a_drafter_that_was_swapped_back_leaves_with_4(theatre: Theatre, capsys: Capture) -> None:
    theatre.client = Noisy(theatre)
    assert type_all(theatre, ["swap", "one", str(theatre.new)]) == [4]
    assert "swapped back to " in capsys.readouterr().out


def test_the_draft_length_is_bounded_until_it_is_any_again(
    theatre: Theatre, capsys: Capture
) -> None:
    heard: list[SteeringOrder] = []

    async def act(stage: Stage) -> None:
        assert await asyncio.to_thread(run, ["swap", "one", "--k", "3"], {}) == 1
        core = await stage.say(make_state())
        for words in ("2-5", "0", "any"):
            assert await asyncio.to_thread(run, ["swap", "one", "--k", words], {}) == 0
        for _ in range(4):
            order = await core.hear(SteeringOrder)
            assert isinstance(order, SteeringOrder)
            heard.append(order)
        core.send(make_state(steers=False))
        await asyncio.sleep(0.05)
        assert await asyncio.to_thread(run, ["swap", "one", "--k", "3", "--json"], {}) == 1

    theatre.serve(act)
    assert [(order.least, order.most) for order in heard] == [
        *((None, None), (2, 5), (None, 0), (None, None)),
    ]
    assert capsys.readouterr().out.splitlines()[0] == "the draft length is 2 to 5 from now on"


@pytest.mark.parametrize(
    "words", [[], ["d", "--back"], ["d", "--k", "3"], ["--k", "x"], ["--k", "5-2"], ["--k", "-1"]]
)
def test_one_thing_is_asked_for_at_a_time(words: list[str], capsys: Capture) -> None:
    assert run(["swap", "one", *words], {}) == 2
    assert "hint: slipstream swap " in capsys.readouterr().err


def test_there_is_no_way_back_before_the_first_swap(
    root: Path, here: Process, capsys: Capture
) -> None:
    keep(root, "live", supervisor=here, engine=None)
    assert run(["swap", "live", "--back"], {}) == 1
    assert "live has no previous drafter" in capsys.readouterr().err


def test_a_run_that_does_not_listen_takes_no_order(
    root: Path, theatre: Theatre, here: Process, capsys: Capture
) -> None:
    keep(root, "live", supervisor=here, engine=None, state="downloading")
    assert run(["swap", "live", str(theatre.new)], {}) == 1
    assert "hint: slipstream status live" in capsys.readouterr().err


def test_a_run_that_ends_meanwhile_leaves_with_3(
    theatre: Theatre, root: Path, capsys: Capture
) -> None:
    async def wait(_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    theatre.client.before_load = wait
    codes: list[int] = []

    async def act(stage: Stage) -> None:
        codes.append(await asyncio.to_thread(run, ["swap", "one", str(theatre.new)], {}))

    theatre.serve(act)
    assert codes == [3]
    assert "hint: slipstream logs --events one" in capsys.readouterr().err
