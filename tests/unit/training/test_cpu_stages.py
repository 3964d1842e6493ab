"""Hidden states are not begun where they have no room."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.errors import InvalidInputError
from slipstream.training.cpu_stages import require_room
from tests.unit.training.pieces import open_workshop, refusal


def test_states_that_do_not_fit_the_disk_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=21 << 30))
    shop = open_workshop(tmp_path)
    assert refusal(require_room, shop, 20 << 30) is None
    with pytest.raises(InvalidInputError) as caught:
        require_room(shop, (20 << 30) + 1)
    assert caught.value.message == (
        f"the hidden states take 20.0 GiB, and 21.0 GiB are free at {tmp_path}"
    )
    assert caught.value.hint == "name a folder on a larger disk with --run, or give fewer prompts"
