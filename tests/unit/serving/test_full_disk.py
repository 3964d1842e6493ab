"""A disk without room ends a download once, says how much is missing, and keeps what came."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.weights import obtain
from tests.unit.serving.fake_hub import NAME, Fault
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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[HubBench]:
    with open_bench(tmp_path / "cache") as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a disk of 1 MiB in a namespace of its own, which ends with its process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && echo mounted && exec sleep 300'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(disk)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            if not holder.stdout or holder.stdout.readline() != b"mounted\n":
                pytest.skip("this machine lets nobody mount a disk")
            yield Path(f"/proc/{holder.pid}/root{disk}")
        finally:
            holder.kill()


def fill(disk: Path) -> None:
    """Take all the room there is."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_model_larger_than_the_disk_is_refused_before_a_shard_is_asked_for(
    bench: HubBench,
) -> None:
    large = {"size": 10 << 40, "sha256": "0" * 64, "pointerSize": 134}
    bench.hub.claims[FIRST] = {"size": 10 << 40, "lfs": large}
    fault = bench.refuse(InvalidInputError)
    assert fault.message.startswith(f"{NAME} needs 11264.0 GiB more in {bench.cache}")
    assert fault.message.endswith(" GiB are free")
    assert "SLIPSTREAM_CACHE" in fault.hint
    assert bench.hub.asked(FIRST) == []
    assert bench.hub.asked("config.json") == []


def test_a_disk_that_fills_up_meanwhile_ends_it_once_and_keeps_what_came(
    bench: HubBench, small_disk: Path
) -> None:
    bench.cache = small_disk / "cache"

    def fill_up() -> None:
        wait_for_partial(bench.cache)
        fill(small_disk)

    bench.fail(FIRST, [Fault(after=HALF, meanwhile=fill_up)])
    fault = bench.refuse(InvalidInputError)
    came = bench.partials()[f"{FIRST}.partial"]
    lacks = (SIZE - came + len(NEEDED[SECOND])) / 2**20
    assert "is full: No space left on device; " in fault.message
    assert f"{NAME} lacks {lacks:.1f} MiB, and 0.0 MiB are free" in fault.message
    assert "it goes on where it was" in fault.hint
    assert bench.hub.asked(FIRST) == [None]
    (small_disk / "filler").unlink()
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == [f"bytes={came}-"]


def test_a_limit_on_the_length_of_files_is_a_full_disk_too(bench: HubBench) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        fault = bench.refuse(InvalidInputError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "is full: File too large; " in fault.message
    assert bench.partials() == {f"{FIRST}.partial": 200_000}
    assert is_whole(bench.obtain())
    assert bench.hub.asked(FIRST) == ["bytes=200000-"]


def test_a_full_disk_is_told_of_when_only_hashes_are_kept(tmp_path: Path, small_disk: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(NEEDED[FIRST])
    fill(small_disk)
    with pytest.raises(InvalidInputError, match=r"cannot write .*: No space left on device"):
        obtain(str(folder), revision=None, cache=small_disk, environment={}, report=print)
