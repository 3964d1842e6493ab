"""`serve` as a user types it, with an engine that only pretends; the real one has its own tests."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.plugin_settings import with_drafter
from slipstream.serving.run import (
    Process,
    Run,
    RunFolder,
    find_runs_root,
    list_runs,
    read_process,
)
from slipstream.serving.supervision.engine_process import choose_port
from slipstream.serving.swaps import ServedDrafter, SwapTrial
from tests.unit.cli.pairs import write_pair
from tests.unit.serving.kept_runs import PLAN, keep
from tests.unit.serving.supervision.fake_engine import write_program
from tests.unit.serving.weights.pieces import make_shard

Capture = pytest.CaptureFixture[str]

NOBODY = Process(pid=1 << 30, start_ticks=1)


@pytest.fixture(autouse=True)
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments of a pair that fits, on a machine that belongs to the test alone."""
    for name, folder in (("STATE", "state"), ("CONFIG", "config"), ("CACHE", "cache")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / folder))
    monkeypatch.delenv("SLIPSTREAM_CACHE", raising=False)
    fake = write_program(tmp_path / "fake")
    for name in ("PYTHONPATH", "FAKE"):
        monkeypatch.setenv(name, str(fake))
    monkeypatch.chdir(tmp_path)
    return write_pair(tmp_path, weights=True)


def find_runs() -> list[Run]:
    return [found for _, found in list_runs(find_runs_root(os.environ))]


def serve_until_ready(*words: str) -> int:
    """Serve, and ask to stop once a run is ready that was not there before."""
    before = {found.id for found in find_runs()}

    def is_ready() -> bool:
        runs = find_runs()
        return bool(runs) and runs[0].id not in before and runs[0].state == "ready"

    with stopping_once(is_ready):
        return run(["serve", *words], os.environ)


@contextmanager
def stopping_once(is_ready: Callable[[], bool]) -> Iterator[None]:
    """Ask this process to stop once it is ready, or when it should long have been."""
    over, latest = threading.Event(), time.monotonic() + 60

    def stop() -> None:
        try:
            while not over.wait(0.05) and time.monotonic() < latest and not is_ready():
                pass
        finally:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_pair_is_served_and_every_event_is_a_line_of_json(
    pair: list[str], capsys: Capture
) -> None:
    port = str(choose_port(None))
    assert serve_until_ready(*pair, "--port", port, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = list(dict.fromkeys(event["state"] for event in events))
    assert states == [
        *("downloading", "starting", "warming", "ready", "draining", "stopping", "stopped")
    ]
    (served,) = find_runs()
    assert served.url == f"http://127.0.0.1:{port}"
    assert served.plan.find("--middleware") is not None
    assert served.versions.keys() >= {"slipstream"}


def test_a_saved_plan_and_then_the_run_itself_are_served_again(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert run(["plan", *pair, "--json"], os.environ) == 0
    saved = tmp_path / "plan.json"
    saved.write_text(capsys.readouterr().out)
    port = str(choose_port(None))
    assert serve_until_ready(str(saved), "--port", port, "--drain", "3") == 0
    (first,) = find_runs()
    root = find_runs_root(os.environ)
    (root / first.id / "learnt.json").write_text('{"of": "the first"}')
    assert serve_until_ready(str(root / first.id)) == 0
    again = find_runs()[0]
    assert (root / again.id / "learnt.json").read_text() == '{"of": "the first"}'
    assert again.id != first.id
    assert again.plan.argv() == first.plan.argv()
    assert again.terms == first.terms
    assert again.terms.drain_seconds == 3


def test_what_would_change_a_plan_does_not_go_with_a_run_or_a_saved_plan(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    run(["plan", *pair, "--json"], os.environ)
    saved = tmp_path / "plan.json"
    saved.write_text(capsys.readouterr().out)
    assert serve_until_ready(str(saved), "--port", str(choose_port(None))) == 0
    (served,) = find_runs()
    folder = str(find_runs_root(os.environ) / served.id)
    capsys.readouterr()
    for words in (["--drafter", "drafter"], ["--from-env"], ["--", "--enforce-eager"]):
        for target in (folder, str(saved)):
            assert run(["serve", target, *words], os.environ) == 2
            assert f", without {words[0]}\n" in capsys.readouterr().err
    # The arguments of a run are not looked through, so it has to be one's own.
    theirs = shutil.copytree(folder, tmp_path / "theirs")
    assert run(["serve", str(theirs)], os.environ) == 1
    assert "is not among your runs" in capsys.readouterr().err
    assert find_runs() == [served]
    # What plans from a model names the model and options of the run.
    assert run(["compare", folder], os.environ) == 1
    (named,) = re.findall(r"hint: in its place: (.*)", capsys.readouterr().err)
    assert run(["plan", "--json", *shlex.split(named)], os.environ) == 0
    again = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert again.drafter == served.plan.drafter


def test_how_a_run_is_served_can_change_when_it_is_served_again(
    pair: list[str], tmp_path: Path
) -> None:
    first_port, port = str(choose_port(None)), str(choose_port(None))
    assert serve_until_ready(*pair, "--port", first_port, "--record", "kept", "--drain", "3") == 0
    folder = str(find_runs_root(os.environ) / find_runs()[0].id)
    time.sleep(1)  # A run is named after its second and its process, and this is one process.
    words = ("--port", port, "--drain", "0", "--redact", r"\d{16}", "--guardian", "plain,note")
    assert serve_until_ready(folder, *words) == 0
    again = find_runs()[0]
    assert again.url == f"http://127.0.0.1:{port}"
    assert again.terms.drain_seconds == 0
    assert again.terms.guardian.allowed == ("note", "plain")
    assert again.terms.recording is not None
    assert again.terms.recording.folder == tmp_path / "kept"
    assert again.terms.recording.redact == (r"\d{16}",)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--redact", "secret"], 2, "--record FOLDER"),
        (["--bind", "0.0.0.0"], 1, "slipstream keys new"),
        (["--dry-run", "--bind", "0.0.0.0"], 1, "slipstream keys new"),
        (["--k", "12"], 1, "is refused"),
        (["--no-gate", "--bind", "0.0.0.0"], 1, "without the gate nothing protects"),
        (["--no-gate", "--record", "kept"], 2, "--no-gate"),
        (["--gate", "gate.toml"], 1, "docs/gate.md"),
        (["--guardian", "note,panic"], 2, "'panic' is not one of note, lower, swap-back"),
        (["--unit"], 2, "a unit needs a saved plan"),
        # Several processes would each allow the whole of a limit.
        (["--", "--api-server-count", "2"], 1, "hint: leave --api-server-count out"),
        (["--", "--ssl-certfile", "none.pem"], 1, "hint: ls -l none.pem"),
    ],
)
def test_what_cannot_be_served_is_told_and_starts_nothing(
    words: list[str], code: int, told: str, pair: list[str], capsys: Capture
) -> None:
    port = ["--port", str(choose_port(None))]
    assert run(["serve", *pair, *port, *words], os.environ) == code
    assert told in capsys.readouterr().err
    assert find_runs() == []


def test_other_machines_are_served_with_a_key(pair: list[str]) -> None:
    assert run(["keys", "new"], os.environ) == 0
    port = str(choose_port(None))
    assert serve_until_ready(*pair, "--bind", "0.0.0.0", "--port", port) == 0


def test_a_port_in_use_is_told_before_anything_starts(pair: list[str], capsys: Capture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["serve", *pair, "--port", port], os.environ) == 1
        assert f"port {port}: Address already in use" in capsys.readouterr().err
        assert find_runs() == []
        settings = {"port": Choice(int(port), "user", "")}
        me = read_process(os.getpid())
        keep(find_runs_root(os.environ), "mine", plan=PLAN.change(**settings), supervisor=me)
        assert run(["serve", *pair, "--port", port], os.environ) == 1
        shown = capsys.readouterr().err
    assert shown.endswith("hint: choose another with --port, or slipstream stop mine\n")


def test_a_dry_run_prints_what_would_be_served_and_begins_nothing(
    pair: list[str], capsys: Capture
) -> None:
    assert run(["serve", *pair, "--port", "8123", "--dry-run", "--json"], os.environ) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert plan.settings.port is not None
    assert plan.settings.port.value == 8123
    assert plan.settings.middleware is not None  # The gate, which `plan` leaves to `serve`.
    assert find_runs() == []


def test_a_changed_file_fails_the_run_before_an_engine_starts(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    port = ("--port", str(choose_port(None)))
    assert serve_until_ready(*pair, *port) == 0
    (tmp_path / "target" / "model.safetensors").write_bytes(make_shard(1000, seed=2))
    assert run(["serve", *pair, *port], os.environ) == 1
    assert "--accept-changes" in capsys.readouterr().err
    assert find_runs()[0].state == "failed"
    assert len(list((tmp_path / "fake").glob("start-*"))) == 1
    time.sleep(1)  # A run is named after its second and its process, and this is one process.
    assert serve_until_ready(*pair, *port, "--accept-changes") == 0


def test_the_gate_has_the_users_rules_from_the_start(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    words = (*pair, "--port", str(choose_port(None)), "--gate", "gate.toml")
    (tmp_path / "gate.toml").write_text("[limit]\nn = 2\n")
    assert run(["serve", *words], os.environ) == 1
    assert "limit: Extra inputs are not permitted; did you mean limits?" in capsys.readouterr().err
    assert find_runs() == []
    (tmp_path / "gate.toml").write_text("[limits]\nn = 2\n")
    assert serve_until_ready(*words) == 0
    (served,) = find_runs()
    assert served.terms.gate_file == tmp_path / "gate.toml"
    settings = json.loads((find_runs_root(os.environ) / served.id / "gate.json").read_text())
    assert (settings["limits"]["n"], settings["keys_required"]) == (2, False)


@pytest.mark.parametrize("target", ["nowhere", "broken.json", "--from-env"])
def test_faulty_rules_are_reported_before_anything_is_planned(
    target: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "gate.toml").write_text("[limit]\nn = 2\n")
    monkeypatch.setenv("MODEL_PATH", "nowhere")
    monkeypatch.setattr("slipstream.cli.serving.serve.require_readable", lambda _: None)
    assert run(["serve", target], os.environ) != 0
    assert "gate.toml" not in capsys.readouterr().err
    assert run(["serve", target, "--gate", "gate.toml"], os.environ) == 1
    assert "gate.toml has invalid rules" in capsys.readouterr().err


def test_keys_are_required_for_as_long_as_a_run_is_served(pair: list[str], tmp_path: Path) -> None:
    port = ("--port", str(choose_port(None)))
    assert run(["keys", "new"], os.environ) == 0
    assert serve_until_ready(*pair, *port) == 0
    (served,) = find_runs()
    assert served.terms.keys_required
    assert served.terms.keys_file is not None
    served.terms.keys_file.unlink()
    time.sleep(1)  # A run is named after its second and its process, and this is one process.
    assert serve_until_ready(str(find_runs_root(os.environ) / served.id)) == 0
    folder = find_runs_root(os.environ) / find_runs()[0].id
    assert json.loads((folder / "gate.json").read_text())["keys_required"]


def test_a_run_without_the_gate_is_for_this_machine_and_shown_as_such(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    port = ("--port", str(choose_port(None)))
    assert serve_until_ready(*pair, *port, "--no-gate") == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "without the gate: every route of vLLM is open" in shown.err
    assert "ready at http://127.0.0.1:" in shown.err
    (served,) = find_runs()
    assert "middleware" not in " ".join(served.argv)
    run(["status", served.id], os.environ)
    assert "gate          none: every user of this machine" in capsys.readouterr().out


def test_old_runs_are_removed_when_another_begins_and_this_is_said(
    pair: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.serving.service.pruning.KEPT_RUNS", 1)
    port = str(choose_port(None))
    for _ in range(2):
        assert serve_until_ready(*pair, "--port", port) == 0
        time.sleep(1)  # A run is named by its second.
    assert " old run" not in capsys.readouterr().err
    for folder, ended in list_runs(find_runs_root(os.environ)):
        folder.write(ended.model_copy(update={"supervisor": NOBODY}))
    first = find_runs()[1].id
    assert serve_until_ready(*pair, "--port", port) == 0
    assert "1 old run of " in capsys.readouterr().err
    assert first not in [found.id for found in find_runs()]


def test_a_drafter_still_on_trial_is_left_behind_when_a_run_is_served_again(
    pair: list[str], tmp_path: Path
) -> None:
    assert serve_until_ready(*pair, "--port", str(choose_port(None))) == 0
    (served,) = find_runs()
    tried = tmp_path / "tried"
    now, old = datetime.now(UTC), Path(served.plan.drafter or "")
    trial = SwapTrial(
        order="1",
        drafter="tried",
        folder=tried,
        before=ServedDrafter(name="old", folder=old, since=now),
        began_at=now,
        until=now + timedelta(hours=1),
    )
    plan = with_drafter(served.plan, tried, "swapped in")
    folder = RunFolder(find_runs_root(os.environ) / served.id)
    folder.write(served.model_copy(update={"plan": plan, "trial": trial}))
    time.sleep(1)  # A run is named after its second and its process, and this is one process.
    assert serve_until_ready(str(folder.path), "--port", str(choose_port(None))) == 0
    again = find_runs()[0]
    assert again.plan.drafter == str(old)
    assert again.trial is not None
    assert (again.trial.order, again.trial.state) == ("1", "rolled back")
