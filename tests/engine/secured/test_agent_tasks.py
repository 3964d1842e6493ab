"""The workload `agent` on the real engine."""

import sys

import pytest

from slipstream.measuring.bench import Bench, list_cells
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.workloads import load_workload
from slipstream.serving.access.tls import TlsCertificate
from tests.engine.secured.conftest import Secured

pytestmark = pytest.mark.engine


def test_the_turns_of_a_task_find_their_earlier_ones_in_the_cache_and_call_tools(
    secured: Secured,
) -> None:
    certificate = TlsCertificate(secured.pair.file, secured.pair.key)
    endpoint = Endpoint(f"https://127.0.0.1:{secured.service.port}", certificate=certificate)
    workload = load_workload(["agent"], most_per_kind=1, context=2048)
    loads, samples = Bench(workload, (1,), tool_choice="named").measure(endpoint)
    (cell,) = list_cells(loads, samples)
    assert [sample.error for sample in samples] == [None] * 5
    assert cell.tasks is not None
    assert cell.tasks.calls == {"parsed": 4}
    shares = [turn.cached_share for turn in cell.tasks.turns]
    sys.stdout.write(f"\n{cell.tasks}")
    assert shares[0] == 0
    assert min(share or 0 for share in shares[1:]) > 0
    # A probe of the supervisor may be counted along.
    assert cell.cache_hit_share == pytest.approx(cell.tasks.cached_share, abs=0.05)
