"""An engine is ready, refused or explained, and never leaves a process behind.

The engines are small programs under vLLM's name, put before the real one by PYTHONPATH.
"""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from slipstream.checkpoints.pairing import Fault
from slipstream.errors import EngineError, InvalidInputError
from slipstream.serving.supervision import engine_process
from slipstream.serving.supervision.engine_process import (
    find_host,
    make_environment,
    read_reasons,
    run_engine,
)
from tests.unit.planning.bare_plans import bare_plan

PREAMBLE = """
import os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

def serve():
    port = int(sys.argv[sys.argv.index("--port") + 1])
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()

def remember(name, pid):
    Path(os.environ["PIDS"], name).write_text(str(pid))

remember("engine", os.getpid())
"""
HEALTHY = "serve()"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); serve()"
DEAF_AND_SILENT = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
SILENT = "print('loading the weights', flush=True); time.sleep(60)"
WITH_A_CHILD = """
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"])
remember("worker", child.pid)
"""
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
    """A folder for an engine's program, its log and the ids of its processes."""

    def __init__(self, folder: Path, program: str) -> None:
        self.log, self.pids = folder / "logs" / "engine.log", folder / "pids"
        self.pids.mkdir()
        package = folder / "vllm" / "entrypoints" / "openai"
        package.mkdir(parents=True)
        for part in (package, *package.parents[:2]):
            (part / "__init__.py").touch()
        (package / "api_server.py").write_text(PREAMBLE + program)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(folder),
            "PIDS": str(self.pids),
        }

    def lose_engine(self, last_words: str) -> NoReturn:
        """Kill the engine, and fail as its client would."""
        with self.log.open("a") as file:
            file.write(f"{last_words}\n")
        os.kill(int((self.pids / "engine").read_text()), signal.SIGKILL)
        assert self.left() == []
        raise EngineError("no answer", hint="none")

    def left(self) -> list[str]:
        """Name the processes that still run; a killed one takes a moment to go."""
        deadline = time.monotonic() + 5
        while running := [file.name for file in self.pids.iterdir() if is_running(file)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return running


def is_running(file: Path) -> bool:
    try:
        state = Path("/proc", file.read_text(), "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_healthy_engine_is_given_by_its_url_and_leaves_nothing_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HEALTHY)
    with run_engine(bare_plan(), log=bench.log, environment=bench.environment) as url:
        assert engine_process.is_healthy(url)
        assert is_running(bench.pids / "engine")
    assert bench.left() == []
    assert not engine_process.is_healthy(url)


def test_the_engine_gets_the_plans_arguments_and_variables(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "print(sys.argv[1:], os.environ['THREADS'], flush=True); serve()")
    plan = bare_plan("--host", "0.0.0.0", environment={"THREADS": "0-2"})
    with run_engine(plan, log=bench.log, environment=bench.environment) as url:
        port = url.removeprefix("http://127.0.0.1:")
    first = bench.log.read_text().splitlines()[0]
    assert first == f"['--model', 'owner/model', '--host', '0.0.0.0', '--port', '{port}'] 0-2"


def test_a_port_given_to_the_engine_directly_is_taken(tmp_path: Path) -> None:
    bench, port = Bench(tmp_path, HEALTHY), engine_process.choose_port(None)
    plan = bare_plan("--port", str(port))
    with run_engine(plan, log=bench.log, environment=bench.environment) as url:
        assert url == f"http://127.0.0.1:{port}"


def test_a_port_on_which_another_listens_is_refused_before_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HEALTHY)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with (
            pytest.raises(InvalidInputError, match=f"cannot listen on port {port}"),
            run_engine(bare_plan(), port=port, log=bench.log, environment=bench.environment),
        ):
            pass
    assert not bench.log.exists()


def test_a_refused_plan_is_not_started(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HEALTHY)
    refusal = Fault(code="memory", verdict="refuse", message="does not fit", hint="a smaller one")
    with (
        pytest.raises(InvalidInputError) as refused,
        run_engine(bare_plan(refusals=(refusal,)), log=bench.log, environment=bench.environment),
    ):
        pass
    assert refused.value.details == ("does not fit",)
    assert refused.value.hint == "a smaller one"
    assert not bench.log.exists()


def test_an_engine_that_dies_says_why_and_its_worker_dies_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, WITH_A_CHILD + "sys.exit('ValueError: no such layer')")
    with (
        pytest.raises(EngineError, match="ended with exit code 1 before it was ready") as died,
        run_engine(bare_plan(), log=bench.log, environment=bench.environment),
    ):
        pass
    assert died.value.details == ("ValueError: no such layer",)
    assert str(bench.log) in died.value.hint
    assert sorted(file.name for file in bench.pids.iterdir()) == ["engine", "worker"]
    assert bench.left() == []


def test_an_engine_that_is_killed_is_told_by_the_signal(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    with (
        pytest.raises(EngineError, match="was killed by SIGKILL"),
        run_engine(bare_plan(), log=bench.log, environment=bench.environment),
    ):
        pass


def test_an_engine_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    bench, waits = Bench(tmp_path, SILENT), list[float]()

    def see_it_load(waited: float) -> None:
        waits.append(waited)
        while "weights" not in bench.log.read_text():
            time.sleep(0.01)

    with (
        pytest.raises(EngineError, match="not ready within 1 s") as late,
        run_engine(
            bare_plan(),
            log=bench.log,
            environment=bench.environment,
            ready_within_seconds=1,
            on_wait=see_it_load,
        ),
    ):
        pass
    assert late.value.details == ("loading the weights",)
    assert 0 <= waits[0] <= waits[-1] < 1
    assert bench.left() == []


def test_an_engine_that_dies_in_use_is_explained_by_its_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HEALTHY)
    with (
        pytest.raises(EngineError, match="stopped answering during the measurement") as died,
        run_engine(bare_plan(), log=bench.log, environment=bench.environment),
    ):
        bench.lose_engine("MemoryError: out of memory")
    assert died.value.details[-1] == "MemoryError: out of memory"


def test_an_error_of_a_healthy_engine_stays_as_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, HEALTHY)
    with (
        pytest.raises(EngineError, match="answered 400"),
        run_engine(bare_plan(), log=bench.log, environment=bench.environment),
    ):
        raise EngineError("answered 400", hint="none")
    assert bench.left() == []


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ZeroDivisionError])
def test_whatever_ends_the_block_ends_the_whole_group(
    tmp_path: Path, fault: type[BaseException]
) -> None:
    bench = Bench(tmp_path, WITH_A_CHILD + HEALTHY)
    with (
        pytest.raises(fault),
        run_engine(bare_plan(), log=bench.log, environment=bench.environment),
    ):
        raise fault
    assert sorted(file.name for file in bench.pids.iterdir()) == ["engine", "worker"]
    assert bench.left() == []


def test_an_engine_that_ignores_the_request_to_end_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "GRACE_SECONDS", 0.5)
    bench = Bench(tmp_path, STUBBORN)
    with run_engine(bare_plan(), log=bench.log, environment=bench.environment):
        leaving = time.monotonic()
    assert 0.5 <= time.monotonic() - leaving < 20
    assert bench.left() == []


def test_an_interrupt_cuts_the_grace_short(tmp_path: Path) -> None:
    bench, started = Bench(tmp_path, STUBBORN), time.monotonic()
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with (
        pytest.raises(KeyboardInterrupt),
        run_engine(bare_plan(), log=bench.log, environment=bench.environment),
    ):
        interrupt.start()
    interrupt.join()
    assert time.monotonic() - started < engine_process.GRACE_SECONDS
    assert bench.left() == []


def test_an_engine_that_is_still_loading_gets_little_grace(tmp_path: Path) -> None:
    bench = Bench(tmp_path, DEAF_AND_SILENT)

    def interrupt_once_up(_: float) -> None:
        if (bench.pids / "engine").exists():
            raise KeyboardInterrupt

    started = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        run_engine(
            bare_plan(), log=bench.log, environment=bench.environment, on_wait=interrupt_once_up
        ),
    ):
        pass
    assert time.monotonic() - started < engine_process.GRACE_SECONDS / 2
    assert bench.left() == []


def test_an_engine_stays_off_the_network() -> None:
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"}
    asked = {"A": "1", "HF_HUB_OFFLINE": "0"}
    assert make_environment(bare_plan(), asked) == {"A": "1", **offline}


@pytest.mark.parametrize(
    ("listens", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]")],
)
def test_an_engine_is_reached_where_it_listens(listens: str, reached: str) -> None:
    assert find_host(bare_plan("--host", listens)) == reached


def test_the_reasons_of_a_death_are_picked_out_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(DYING_LOG)
    assert read_reasons(log) == (
        "ValueError: no room",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )


def test_a_refused_setting_is_shown_with_what_is_wrong_about_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(REFUSING_LOG)
    assert read_reasons(log) == (
        "pydantic_core.ValidationError: 1 validation error for VllmConfig",
        "Value error, metrics require a drafter [type=value_error]",
    )


def test_without_an_error_in_the_log_its_last_lines_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("".join(f"(A pid=1) INFO 11-15 04:47:11 [a.py:1] step {n}\n" for n in range(9)))
    assert read_reasons(log) == tuple(f"step {number}" for number in range(3, 9))


@pytest.mark.parametrize(
    ("given", "kept"), [("", None), (":", None), (":/a::/b:", "/a:/b"), ("/a", "/a")]
)
def test_no_entry_of_the_search_path_is_the_working_directory(given: str, kept: str | None) -> None:
    assert make_environment(bare_plan(), {"PYTHONPATH": given}).get("PYTHONPATH") == kept


def test_an_engine_that_is_only_measured_needs_no_certificate(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "print(sys.argv[1:], flush=True); serve()")
    plan = bare_plan("--ssl-certfile", "c", "--ssl-keyfile", "k", "--seed", "1")
    with run_engine(plan, log=bench.log, environment=bench.environment) as url:
        assert url.startswith("http://")
    assert "--ssl" not in bench.log.read_text()
    assert "--seed" in bench.log.read_text()
