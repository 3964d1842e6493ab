"""A busy machine is no failure, and neither is one that starts the tests in the background."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.unit.full_disk import mount_disk, unmount_disk

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# A shell's background job ignores interrupts, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 24 MiB that a test can fill."""
    place = tmp_path / "disk"
    if why := mount_disk(place):
        pytest.skip(f"no file system can be mounted here: {why}")
    yield place
    unmount_disk(place)
