"""One gated server and one neighbour, shared by everything that is shown of the gate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.gate.gated_server import Gated, run_gated
from tests.engine.gate.neighbour import Neighbour, run_neighbour


@pytest.fixture(scope="package")
def gated(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    with run_gated(target, tmp_path_factory.mktemp("gated")) as server:
        yield server


@pytest.fixture
def neighbour(gated: Gated, tmp_path: Path) -> Iterator[Neighbour]:
    with run_neighbour(gated.port, gated.neighbour, tmp_path) as asking:
        yield asking
