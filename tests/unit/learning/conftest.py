"""A pair of checkpoints for the tests of learning."""

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from tests.unit.planning.pieces import DRAFTER, TARGET


@pytest.fixture
def target() -> Checkpoint:
    return TARGET


@pytest.fixture
def drafter() -> Checkpoint:
    return DRAFTER
