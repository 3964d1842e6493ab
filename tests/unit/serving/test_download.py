"""A file of the hub arrives whole or not at all, and goes on where it was cut."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha1, sha256
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.serving import download
from slipstream.serving.weights_lock import ByteProgress
from tests.unit.serving.fake_hub import NAME, Fault, flip, run_hub
from tests.unit.serving.hub_bench import (
    FIRST,
    NEEDED,
    SECOND,
    HubBench,
    is_whole,
    open_bench,
    wait_for_partial,
)

HALF = 150_000
SIZE = len(NEEDED[FIRST])
CUT, NOTHING = Fault(after=HALF, cut=True), Fault(after=0, cut=True)
DONE = f"fetching {NAME}: 0.5 MiB of 0.5 MiB, "
FETCHER = """
import os, sys
from pathlib import Path
from slipstream.serving.weights import obtain
obtain(sys.argv[1], revision=None, cache=Path(sys.argv[2]), environment=os.environ, report=print)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[HubBench]:
    with open_bench(tmp_path / "cache") as opened:
        yield opened


def test_a_cut_connection_goes_on_where_it_was(bench: HubBench) -> None:
    bench.fail(FIRST, [CUT, *[Fault(after=10_000, cut=True)] * 4])
    assert is_whole(bench.obtain())
    later = [f"bytes={HALF + 10_000 * cuts}-" for cuts in range(5)]
    assert bench.hub.asked(FIRST) == [None, *later]
    assert f"{FIRST}: cut at 0.1 MiB, going on in 0.0 s" in bench.lines
    assert bench.partials() == {}


def test_a_hub_that_falls_silent_is_left_and_asked_again(
    bench: HubBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SILENCE_SECONDS", 1.5)
    bench.fail(FIRST, [Fault(after=HALF, meanwhile=bench.hub.stall)])
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == [None, f"bytes={HALF}-"]


def test_a_slow_hub_is_waited_for(bench: HubBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SILENCE_SECONDS", 20.0)
    bench.fail(FIRST, [Fault(after=HALF, meanwhile=lambda: time.sleep(0.5))])
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == [None]


def test_what_was_fetched_before_an_error_is_not_fetched_again(bench: HubBench) -> None:
    bench.fail(SECOND, [CUT, NOTHING, NOTHING])
    fault = bench.refuse(MissingPartError)
    assert fault.message == f"{SECOND} of {NAME} stays at 0.1 MiB of 0.2 MiB"
    assert fault.details[0].startswith("RemoteProtocolError ")
    assert fault.hint == "run the same command again: it goes on where it was"
    assert bench.partials() == {f"{SECOND}.partial": HALF}
    assert is_whole(bench.obtain())
    assert bench.hub.asked(SECOND) == [f"bytes={HALF}-"]
    assert bench.hub.asked(FIRST) == []
    assert [line for line in bench.lines if "hashing" in line] == []


def test_a_killed_download_goes_on_where_it_was(bench: HubBench) -> None:
    bench.fail(FIRST, [Fault(after=HALF, meanwhile=bench.hub.stall)])
    settings = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0"}
    environment = {**os.environ, **bench.environment, **settings}
    command = [sys.executable, "-c", FETCHER, NAME, str(bench.cache)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for_partial(bench.cache)
        finally:
            process.send_signal(signal.SIGKILL)
    came = bench.partials()[f"{FIRST}.partial"]
    assert 0 < came <= HALF
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == [f"bytes={came}-"]
    assert bench.hub.asked("config.json") == []


def test_a_hub_that_cannot_go_on_starts_over(bench: HubBench) -> None:
    bench.fail(FIRST, [CUT, Fault(ignore_range=True)])
    assert is_whole(bench.obtain())
    assert len(bench.hub.asked(FIRST)) == 2
    assert bench.lines[-1].startswith(DONE)


def test_a_hub_that_is_busy_is_asked_again(bench: HubBench) -> None:
    bench.fail(FIRST, [Fault(status=503), Fault(status=429)])
    assert is_whole(bench.obtain())


def test_a_hub_that_stays_busy_is_left_with_a_hint(bench: HubBench) -> None:
    bench.fail(FIRST, [Fault(status=503)] * 3)
    fault = bench.refuse(MissingPartError)
    assert fault.details == ("the hub answered 503",)
    assert len(bench.hub.asked(FIRST)) == 3


def test_wrong_bytes_are_fetched_a_second_time_from_the_start(bench: HubBench) -> None:
    bench.fail(FIRST, [Fault(change=flip)])
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == [None, None]
    assert bench.lines[-1].startswith(DONE)


def test_a_partial_file_that_went_bad_is_fetched_anew(bench: HubBench) -> None:
    bench.fail(FIRST, [CUT, NOTHING, NOTHING])
    bench.refuse(MissingPartError)
    partial = next(bench.cache.rglob("*.partial"))
    partial.write_bytes(flip(partial.read_bytes()))
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == [f"bytes={HALF}-", None]


def test_wrong_bytes_twice_are_refused_with_both_hashes(bench: HubBench) -> None:
    bench.fail(FIRST, [Fault(change=flip)] * 2)
    fault = bench.refuse(InvalidInputError)
    right, wrong = (sha256(content).hexdigest() for content in (NEEDED[FIRST], flip(NEEDED[FIRST])))
    assert fault.message == (
        f"{FIRST} of {NAME} came wrong twice: sha256 {wrong}, but the hub lists {right}"
    )
    assert bench.partials() == {}
    assert not any(path.name == FIRST for path in bench.cache.rglob("*"))


def test_a_small_file_is_compared_with_its_hash_in_git(bench: HubBench) -> None:
    bench.fail("config.json", [Fault(change=flip)] * 2)
    wrong = flip(NEEDED["config.json"])
    found = sha1(b"blob %d\0" % len(wrong) + wrong, usedforsecurity=False).hexdigest()
    fault = bench.refuse(InvalidInputError)
    assert f"config.json of {NAME} came wrong twice: git's sha1 {found}, but the " in fault.message


def test_a_file_longer_than_the_hub_lists_is_not_written_to_its_end(bench: HubBench) -> None:
    longer = Fault(change=lambda content: content + b"x" * 20_000_000)
    bench.fail(FIRST, [longer, longer])
    fault = bench.refuse(InvalidInputError)
    assert fault.message.endswith(f" bytes or more, but the hub lists {SIZE}")
    assert f"{FIRST} of {NAME} came wrong twice: " in fault.message
    assert bench.hub.served_bytes < 20_000_000
    assert bench.partials() == {}


def test_a_token_stays_with_the_hub_and_is_written_nowhere(
    bench: HubBench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    token = bench.environment["HF_TOKEN"]
    with run_hub(NEEDED) as store:
        bench.fail(FIRST, [Fault(redirect=store.endpoint)])
        bench.fail(SECOND, [Fault(status=401, code="GatedRepo")])
        fault = bench.refuse(InvalidInputError)
        assert [request.authorization for request in store.log] == [None]
    assert {request.authorization for request in bench.hub.log} == {f"Bearer {token}"}
    kept = b"".join(path.read_bytes() for path in bench.cache.rglob("*") if path.is_file())
    said = [
        *bench.lines,
        fault.message,
        fault.hint,
        *fault.details,
        caplog.text,
        *capfd.readouterr(),
    ]
    assert token not in "".join(said)
    assert token.encode() not in kept


def test_progress_tells_bytes_and_rate_once_in_a_while_and_at_the_end() -> None:
    lines, now = list[str](), [0.0]
    progress = ByteProgress(lines.append, "fetching a/b", 4 << 30, clock=lambda: now[0])
    for _ in range(8):
        now[0] += 2
        progress.add(1 << 29)
    assert lines == [
        "fetching a/b: 1.5 GiB of 4.0 GiB, 268 MB/s",
        "fetching a/b: 3.0 GiB of 4.0 GiB, 268 MB/s",
        "fetching a/b: 4.0 GiB of 4.0 GiB, 268 MB/s",
    ]
