"""A real disk that is really full."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

SIZE_MIB = 24
FILLER = "filler"


def mount_disk(place: Path) -> str | None:
    """Mount a small disk at a folder, or say why that cannot be done here."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "small-disk", str(place)]
    tried = subprocess.run(mount, capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else None


def unmount_disk(place: Path) -> None:
    """Take the disk away, whoever still looks at it."""
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with (disk / FILLER).open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert shutil.disk_usage(disk).free == 0
