"""The prompts with which Slipstream measures: classes of its own, the user's, published ones."""

from slipstream.measuring.workloads.loading import load_workload, names_tasks
from slipstream.measuring.workloads.workload import Prompt, Workload

__all__ = ["Prompt", "Workload", "load_workload", "names_tasks"]
