"""`demo` as a user types it, with servers that stream letters in the engine's place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.cli.measuring import measuring_options
from slipstream.cli.planning import demo as verb
from slipstream.demo.performance import Demo
from slipstream.hardware import load_host
from slipstream.measuring import engine_start
from slipstream.measuring.machine_watch import MachineWatch
from slipstream.planning import LaunchPlan
from tests.unit.cli.pairs import write_pair
from tests.unit.cli.test_screen import Terminal
from tests.unit.demo.pieces import decode
from tests.unit.demo.test_performance import EVENTS, give, pace
from tests.unit.measuring.client.stream_server import ROLE, answer_with, count, run_stream_server

Capture = pytest.CaptureFixture[str]

LETTERS = (ROLE, *map(give, "abcde"), give("f", "length"), count(9, 6))


class Engines:
    """Which engines ran, and whether one still does."""

    def __init__(self) -> None:
        self.plans: list[LaunchPlan] = []
        self.up = 0

    @contextmanager
    def run(self, plan: LaunchPlan, **how: Any) -> Iterator[str]:
        self.plans.append(plan)
        how["on_start"](os.getpid())
        events = EVENTS if plan.drafter else LETTERS
        with run_stream_server(lambda _: pace(answer_with(*events))) as server:
            self.up += 1
            try:
                yield server.url
            finally:
                self.up -= 1


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Put a toy in the place of the model, the drafter and the engines."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    write_pair(tmp_path, target="toy")
    ran = Engines()
    monkeypatch.setattr(verb, "make_smollm2", lambda _: tmp_path / "toy")
    monkeypatch.setattr(verb, "SHIPPED_DRAFTER", tmp_path / "drafter")
    monkeypatch.setattr(verb, "load_decoder", lambda _: decode)
    monkeypatch.setattr(measuring_options, "read_host", lambda _: load_host("cpu-server"))
    monkeypatch.setattr(engine_start, "run_engine", ran.run)
    monkeypatch.setattr(verb, "make_watch", lambda _: MachineWatch(proc=tmp_path / "proc"))
    return ran


def test_a_machine_gets_one_document_and_the_page_and_no_engine_is_left(
    engines: Engines, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["demo", "--json", "--max-tokens", "6"], os.environ) == 0
    shown = capsys.readouterr()
    done = Demo.model_validate_json(shown.out)
    assert shown.err == ""
    assert [len(answers) for answers in done.answers] == [4, 4]
    assert done.equal == 4
    assert done.tokens_per_step == 2.5
    assert (done.conditions.model, done.conditions.max_tokens) == ("toy", 6)
    assert engines.up == 0
    assert "<svg" in (tmp_path / "slipstream-demo.html").read_text()


def test_both_engines_run_the_same_plan_eagerly(engines: Engines) -> None:
    assert run(["demo", "--json"], os.environ) == 0
    plain, drafted = engines.plans
    assert (plain.drafter, bool(drafted.drafter)) == (None, True)
    # A drafter has a cache of its own.
    assert set(plain.change(kv_cache_bytes=None).argv()) < set(drafted.argv())
    assert "--enforce-eager" in plain.argv()


@pytest.mark.parametrize(
    ("features", "share", "name"),
    [
        (("avx512_vnni",), 0.3, "toy-W8A8"),
        (("avx512_vnni",), 1.1, "toy"),
        (("avx512_vnni", "amx_bf16"), 0.3, "toy"),
        (("avx2",), 0.3, "toy"),
    ],
)
def test_the_target_is_in_8_bits_where_those_are_measured_to_be_faster(
    features: tuple[str, ...],
    share: float,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    copytree(tmp_path / "toy", tmp_path / "toy-W8A8")
    host = load_host("cpu-server")
    processor = host.processor.model_copy(update={"features": features})
    host = host.model_copy(update={"processor": processor})
    monkeypatch.setattr(measuring_options, "read_host", lambda _: host)
    monkeypatch.setattr(verb, "compare_products", lambda _: share)
    monkeypatch.setattr(verb, "make_int8", lambda target: target.with_name("toy-W8A8"))
    assert run(["demo", "--json"], os.environ) == 0
    done = Demo.model_validate_json(capsys.readouterr().out)
    assert done.conditions.model == name
    assert ("takes 0.30 of the time" in done.quantized) is (name != "toy")


def test_arguments_for_the_engine_take_the_place_of_ours(engines: Engines) -> None:
    assert run(["demo", "--json", "--", "--dtype", "float32"], os.environ) == 0
    assert "float32" in engines.plans[0].argv()
    assert "--enforce-eager" not in engines.plans[0].argv()


def test_a_pipe_gets_the_verdict_and_the_seconds_but_no_cursor_is_moved(
    engines: Engines, capsys: Capture
) -> None:
    assert run(["demo", "--html", "it.html"], os.environ) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Drafts made toy ")
    begun = shown.err.index("          the drafted engine starts ...\n")
    assert begun < shown.err.index(" s  the drafted engine starts\n")
    assert "written: it.html\nto serve this pair: slipstream serve " in shown.err
    assert "\033" not in shown.out + shown.err
    assert engines.up == 0


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_gets_the_replay_and_the_server_until_it_is_interrupted(
    engines: Engines, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(url: str) -> None:
        assert url in screen.getvalue()
        assert engines.up == 1
        raise KeyboardInterrupt

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(verb, "stay_up", interrupt)
    monkeypatch.setattr(verb, "READING_SECONDS", 0.0)
    environment = {**os.environ, **({} if colour else {"NO_COLOR": "1"})}
    assert run(["demo"], environment) == 0
    shown = screen.getvalue()
    assert ("\033[32mbc\033[0md" in shown) is colour
    assert ("accepted drafts in green" in shown) is colour
    assert "\033[3A" in shown
    assert "replayed as measured" in shown
    assert "slipstream chat http://127.0.0.1:" in shown
    assert shown.endswith("stopping the engine\n")
    assert engines.up == 0


def test_a_dumb_terminal_is_no_stage(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "dumb")
    assert run(["demo"], os.environ) == 0
    assert "\033" not in screen.getvalue()


def test_a_page_that_cannot_be_written_is_refused_at_once(
    engines: Engines, capsys: Capture
) -> None:
    assert run(["demo", "--html", "nowhere/it.html"], os.environ) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert engines.plans == []
