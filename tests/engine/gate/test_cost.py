"""The gate costs less than a hundredth of what the engine takes for a token.

`experiments/measure-gate` compares whole servers, on a machine that does nothing else.
"""

import sys
from pathlib import Path

import pytest

from tests.engine.gate.gated_server import Gated
from tests.engine.gate.neighbour import Neighbour
from tests.engine.gate.neighbour_process import MAX_TOKENS
from tests.engine.gate.null_engine import measure_gate
from tests.engine.gate.percentiles import percentile

pytestmark = [pytest.mark.engine, pytest.mark.weekly]

SHARE = 0.01
# One stream at 400 tokens a second is more than a single GPU gives a large model.
FASTEST_TOKEN_SECONDS = 1 / 400


def test_the_gate_costs_less_than_a_hundredth_of_a_token(
    gated: Gated, neighbour: Neighbour, tmp_path: Path
) -> None:
    samples = neighbour.during([neighbour.watch(5)])
    first = percentile([one.first_token for one in samples], 0.1)
    token = percentile([(one.seconds - one.first_token) / (MAX_TOKENS - 1) for one in samples], 0.1)
    sys.stdout.write(f"\nthe engine: first token {first * 1e3:.1f} ms, then {token * 1e3:.2f} ms")
    for words in (20, 2000):
        cost = measure_gate(tmp_path / str(words), words)
        sys.stdout.write(
            f"\nthe gate, {words} words: {cost.request * 1e6:.0f} us a request"
            f" ({cost.request / first:.2%} of the first token),"
            f" {cost.chunk * 1e6:.2f} us a chunk ({cost.chunk / token:.3%} of a token)"
        )
        assert cost.request < SHARE * first
        assert cost.chunk < SHARE * min(token, FASTEST_TOKEN_SECONDS)
    sys.stdout.write("\n")
