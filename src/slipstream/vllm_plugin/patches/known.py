"""Every patch there is, by its name."""

from slipstream.vllm_plugin.patches import cpu_sampling, drafter_positions, turboquant_graphs

PATCHES = {
    patch.name: patch
    for patch in (cpu_sampling.PATCH, drafter_positions.PATCH, turboquant_graphs.PATCH)
}
