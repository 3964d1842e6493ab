"""The last block of a prefix hit is kept where nothing in it can be wrong."""

from typing import Any

import pytest

from slipstream.planning.settings.speculation import KEPT_BLOCK
from tests.unit.planning.pieces import HYBRID_LAYERS
from tests.unit.planning.settings.test_patches import plan, with_draft

KEY = f"--speculative-config.{KEPT_BLOCK}"


@pytest.mark.parametrize(
    ("machine", "inputs", "kept"),
    [
        ("cpu-server", {}, ("true", "default")),
        ("h100", {}, ("true", "default")),
        ("h100", {"drafter": with_draft(family="dflash2")}, ("true", "default")),
        ("h100", {"drafter": with_draft(family="dspark")}, ("true", "default")),
        ("h100", {"drafter": with_draft(family="eagle3")}, None),
        ("h100", {"goal": "agent"}, ("true", "default")),
        ("h100", {"target": {"layers": HYBRID_LAYERS}}, None),
        ("h100", {"target": {"layers": None}}, None),
        ("h100", {"plain": True}, None),
        ("h100", {"engine": ("--no-enable-prefix-caching",)}, None),
        ("h100", {"engine": (KEY, "false")}, ("false", "user")),
    ],
)
def test_a_drafter_that_stores_one_position_at_a_time_keeps_the_last_cached_block(
    machine: str, inputs: dict[str, Any], kept: tuple[str, str] | None
) -> None:
    made = plan(machine, **inputs)
    found = made.find(KEY)
    assert (found and (found.value, found.source)) == kept
    words, left_out = made.sglang_argv()
    assert not any(KEPT_BLOCK in word for word in words)
    assert (KEY in " ".join(left_out)) is (kept == ("false", "user"))
