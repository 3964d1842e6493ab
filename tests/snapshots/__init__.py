"""Whole outputs compared with files under tests/snapshots/.

`SLIPSTREAM_UPDATE_SNAPSHOTS=1 pytest` writes them anew; the diff is then read like code.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def read_snapshot(name: str, shown: str, folder: Path = FOLDER) -> str:
    """Return what is expected under this name, after writing it if that was asked for."""
    path = folder / name
    if os.environ.get("SLIPSTREAM_UPDATE_SNAPSHOTS"):
        path.write_text(shown)
    return path.read_text()
