"""How to start an engine for a pair on a machine, every setting with its reason."""

from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.wishes import Wishes

__all__ = ["LaunchPlan", "Wishes", "make_plan"]
