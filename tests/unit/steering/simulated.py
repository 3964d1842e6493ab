"""The traffic of `scripts/simulate-guardian`, for tests."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SCRIPT = Path(__file__).parents[3] / "scripts" / "simulate-guardian"
simulation: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="simulation"))
