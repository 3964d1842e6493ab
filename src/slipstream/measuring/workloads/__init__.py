"""Prompts for measuring: shipped kinds, the user's own files, and published sets."""

from slipstream.measuring.workloads.loading import load_workload, names_tasks
from slipstream.measuring.workloads.workload import Prompt, Workload

__all__ = ["Prompt", "Workload", "load_workload", "names_tasks"]
