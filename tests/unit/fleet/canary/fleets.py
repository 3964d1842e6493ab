"""Simulated ledgers of a fleet's groups for tests, by the script that measures error rates."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[4] / "experiments" / "simulate-canary"


def load_simulation() -> ModuleType:
    """Import the script."""
    loader = SourceFileLoader("simulate_canary", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module
