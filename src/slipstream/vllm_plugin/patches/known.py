"""All patches by name."""

from slipstream.vllm_plugin.patches import (
    cpu_sampling,
    cpu_top_k,
    dflash_no_drafts,
    dflash_survival,
    dflash_v2_copy,
    drafter_positions,
    greedy_verification,
    turboquant_graphs,
)

_MODULES = (
    *(cpu_sampling, cpu_top_k, dflash_no_drafts, dflash_survival, dflash_v2_copy),
    *(drafter_positions, greedy_verification, turboquant_graphs),
)
PATCHES = {module.PATCH.name: module.PATCH for module in _MODULES}
