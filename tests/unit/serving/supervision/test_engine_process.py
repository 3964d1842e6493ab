"""An engine is ready, refused or explained, and never leaves a process behind."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from slipstream.checkpoints.pairing import Fault
from slipstream.errors import EngineError, InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.run import read_process
from slipstream.serving.supervision import engine_process
from slipstream.serving.supervision.engine_process import (
    find_host,
    make_environment,
    read_reasons,
    run_engine,
)
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.serving.supervision.fake_engine import rule, write_program

WORKER, DEAF, STAYS = rule("worker"), rule("deaf"), rule("stay")
DYING_LOG = """\
(APIServer pid=7) WARNING 11-15 04:46:43 [system_utils.py:255] fd limit errors like OSError
(EngineCore pid=9) ERROR 11-15 04:47:11 [core.py:1100] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-15 04:47:11 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-15 04:47:11 [core.py:1100]   File "/lib/error.py", line 1, in run
(EngineCore pid=9) ERROR 11-15 04:47:11 [core.py:1100]     raise ValueError("no room")
(EngineCore pid=9) ERROR 11-15 04:47:11 [core.py:1100] ValueError: no room
Process EngineCore:
ValueError: no room
RuntimeError: Engine core initialization failed. See root cause above.
nanobind: leaked 64 types!
 - leaked type "triton._C.libtriton.ir.location"
"""
REFUSING_LOG = """\
    raise pydantic_core.ValidationError(faults)
pydantic_core.ValidationError: 1 validation error for VllmConfig
  Value error, metrics require a drafter [type=value_error]
    For further information visit https://errors.pydantic.dev/2.13/v/value_error
"""


class Bench:
    """An engine that is only measured, its log and its processes."""

    def __init__(self, folder: Path, *rules: dict[str, Any]) -> None:
        self.log, self.fake = folder / "logs" / "engine.log", write_program(folder / "fake", *rules)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.fake),
            "FAKE": str(self.fake),
        }

    def run(self, plan: LaunchPlan | None = None, **how: Any) -> AbstractContextManager[str]:
        return run_engine(plan or bare_plan(), log=self.log, environment=self.environment, **how)

    def lose_engine(self, last_words: str) -> NoReturn:
        """Kill the engine, and fail as its client would."""
        with self.log.open("a") as file:
            file.write(f"{last_words}\n")
        os.kill(self.list_pids()[0], signal.SIGKILL)
        assert self.left() == []
        raise EngineError("no answer", hint="none")

    def list_pids(self) -> list[int]:
        """Return the engine's process, and its worker's if it has one."""
        started, worker = self.fake / "start-0", self.fake / "worker"
        pids = [json.loads(started.read_text())[0]] if started.exists() else []
        return [*pids, int(worker.read_text())] if worker.exists() else pids

    def left(self) -> list[int]:
        """Return the processes that still run; a killed one takes a moment to go."""
        deadline = time.monotonic() + 5
        while running := [pid for pid in self.list_pids() if read_process(pid)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return running


def test_a_healthy_engine_is_given_by_its_url_and_leaves_nothing_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.run() as url:
        assert engine_process.is_healthy(url)
        assert read_process(bench.list_pids()[0])
    assert bench.left() == []
    assert not engine_process.is_healthy(url)


def test_the_engine_gets_the_plans_arguments_and_variables(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan = bare_plan("--host", "0.0.0.0", environment={"THREADS": "0-2"})
    with bench.run(plan) as url:
        port = url.removeprefix("http://127.0.0.1:")
    argv = json.loads((bench.fake / "start-0").read_text())[1:]
    assert argv == ["--model", "owner/model", "--host", "0.0.0.0", "--port", port]
    assert json.loads((bench.fake / "environment").read_text())["THREADS"] == "0-2"


def test_a_port_given_to_the_engine_directly_is_taken(tmp_path: Path) -> None:
    bench, port = Bench(tmp_path), engine_process.choose_port(None)
    plan = bare_plan("--port", str(port))
    with bench.run(plan) as url:
        assert url == f"http://127.0.0.1:{port}"


def test_a_port_on_which_another_listens_is_refused_before_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with (
            pytest.raises(InvalidInputError, match=f"cannot listen on port {port}"),
            bench.run(port=port),
        ):
            pass
    assert not bench.log.exists()


def test_a_refused_plan_is_not_started(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    refusal = Fault(code="memory", verdict="refuse", message="does not fit", hint="a smaller one")
    with (
        pytest.raises(InvalidInputError) as refused,
        bench.run(bare_plan(refusals=(refusal,))),
    ):
        pass
    assert refused.value.details == ("does not fit (memory)",)
    assert refused.value.hint == "a smaller one"
    assert not bench.log.exists()


@pytest.mark.parametrize(
    ("end", "said", "details"),
    [
        (rule("start", "ValueError: x"), "ended with exit code 1 before", ("ValueError: x",)),
        (rule("start", signal=signal.SIGKILL), "was killed by SIGKILL before", ()),
    ],
)
def test_an_engine_that_dies_says_why_and_its_worker_dies_too(
    tmp_path: Path, end: dict[str, Any], said: str, details: tuple[str, ...]
) -> None:
    bench = Bench(tmp_path, WORKER, end)
    with pytest.raises(EngineError, match=said) as died, bench.run():
        pass
    assert died.value.details == details
    assert str(bench.log) in died.value.hint
    assert len(bench.list_pids()) == 2
    assert bench.left() == []


def test_an_engine_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    bench, waits = Bench(tmp_path, rule("say", "loading the weights"), STAYS), list[float]()

    def see_it_load(waited: float) -> None:
        waits.append(waited)
        while "weights" not in bench.log.read_text():
            time.sleep(0.01)

    with (
        pytest.raises(EngineError, match="not ready within 1 s") as late,
        bench.run(ready_within_seconds=1, on_wait=see_it_load),
    ):
        pass
    assert late.value.details == ("loading the weights",)
    assert 0 <= waits[0] <= waits[-1] < 1
    assert bench.left() == []


def test_an_engine_that_dies_in_use_is_explained_by_its_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with (
        pytest.raises(EngineError, match="stopped answering during the measurement") as died,
        bench.run(),
    ):
        bench.lose_engine("MemoryError: out of memory")
    assert died.value.details[-1] == "MemoryError: out of memory"


def test_an_error_of_a_healthy_engine_stays_as_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with (
        pytest.raises(EngineError, match="answered 400"),
        bench.run(),
    ):
        raise EngineError("answered 400", hint="none")
    assert bench.left() == []


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ZeroDivisionError])
def test_whatever_ends_the_block_ends_the_whole_group(
    tmp_path: Path, fault: type[BaseException]
) -> None:
    bench = Bench(tmp_path, WORKER)
    with (
        pytest.raises(fault),
        bench.run(),
    ):
        raise fault
    assert len(bench.list_pids()) == 2
    assert bench.left() == []


def test_an_engine_that_ignores_the_request_to_end_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "GRACE_SECONDS", 0.5)
    bench = Bench(tmp_path, DEAF)
    with bench.run():
        leaving = time.monotonic()
    assert 0.5 <= time.monotonic() - leaving < 20
    assert bench.left() == []


def test_an_interrupt_cuts_the_grace_short(tmp_path: Path) -> None:
    bench, started = Bench(tmp_path, DEAF), time.monotonic()
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with (
        pytest.raises(KeyboardInterrupt),
        bench.run(),
    ):
        interrupt.start()
    interrupt.join()
    assert time.monotonic() - started < engine_process.GRACE_SECONDS
    assert bench.left() == []


def test_an_engine_that_is_still_loading_gets_little_grace(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DEAF, STAYS)

    def interrupt_once_up(_: float) -> None:
        if bench.list_pids():
            raise KeyboardInterrupt

    started = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        bench.run(on_wait=interrupt_once_up),
    ):
        pass
    assert time.monotonic() - started < engine_process.GRACE_SECONDS / 2
    assert bench.left() == []


def test_an_engine_stays_off_the_network() -> None:
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"}
    asked = {"A": "1", "HF_HUB_OFFLINE": "0", "SLIPSTREAM_CACHE": "/c"}
    kept = {"A": "1", "SLIPSTREAM_CACHE": "/c", "TORCHINDUCTOR_CACHE_DIR": "/c/torchinductor"}
    assert make_environment(bare_plan(), asked) == {**kept, **offline}
    own = {"TORCHINDUCTOR_CACHE_DIR": "/own"}
    assert make_environment(bare_plan(), own) == {**own, **offline}


@pytest.mark.parametrize(
    ("listens", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]")],
)
def test_an_engine_is_reached_where_it_listens(listens: str, reached: str) -> None:
    assert find_host(bare_plan("--host", listens)) == reached


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (
            DYING_LOG,
            (
                "ValueError: no room",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ),
        ),
        (
            REFUSING_LOG,
            (
                "pydantic_core.ValidationError: 1 validation error for VllmConfig",
                "Value error, metrics require a drafter [type=value_error]",
            ),
        ),
        (
            "".join(f"(A pid=1) INFO 11-15 04:47:11 [a.py:1] step {n}\n" for n in range(9)),
            tuple(f"step {number}" for number in range(3, 9)),
        ),
    ],
    ids=["a death", "a refused setting", "no error"],
)
def test_the_reasons_of_a_death_are_picked_out_of_the_log(
    tmp_path: Path, text: str, reasons: tuple[str, ...]
) -> None:
    (tmp_path / "engine.log").write_text(text)
    assert read_reasons(tmp_path / "engine.log") == reasons


@pytest.mark.parametrize(
    ("given", "kept"), [("", None), (":", None), (":/a::/b:", "/a:/b"), ("/a", "/a")]
)
def test_no_entry_of_the_search_path_is_the_working_directory(given: str, kept: str | None) -> None:
    assert make_environment(bare_plan(), {"PYTHONPATH": given}).get("PYTHONPATH") == kept


def test_an_engine_that_is_only_measured_needs_no_certificate(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan = bare_plan("--ssl-certfile", "c", "--ssl-keyfile", "k", "--seed", "1")
    with bench.run(plan) as url:
        assert url.startswith("http://")
    argv = (bench.fake / "start-0").read_text()
    assert "--seed" in argv
    assert "--ssl" not in argv
