"""How to start an engine for a pair on a machine, every setting with its reason.

`planner.py` is the entry: `make_plan` lays what the user specified into the settings
(`settings/`), lets rules fill the rest, adds up the memory (`memory/`) and collects what speaks
against it (`faults/`). `drafters/resolution.py` finds its inputs for the name of a target.
"""

from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import PlanOptions, make_options

__all__ = ["LaunchPlan", "PlanOptions", "make_options", "make_plan"]
