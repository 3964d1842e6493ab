"""Every patch there is, by its name."""

from slipstream.vllm_plugin.patches import (
    cpu_sampling,
    cpu_top_k,
    drafter_positions,
    turboquant_graphs,
)

_MODULES = (cpu_sampling, cpu_top_k, drafter_positions, turboquant_graphs)
PATCHES = {module.PATCH.name: module.PATCH for module in _MODULES}
