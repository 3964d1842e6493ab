"""What speaks against a plan: refusals and warnings, each with a way out.

Faults between two checkpoints are in `checkpoints/pairing.py`, those of an engine version in
`engines/vllm.py`, combinations that were seen to fail in `recipes/catalogue/known-bad/`.
"""

from slipstream.checkpoints.pairing import Fault
from slipstream.planning.faults.checks import (
    find_agent_fault,
    find_headroom_fault,
    find_host_fault,
    find_layout_faults,
    find_memory_faults,
    find_method_faults,
    find_pair_faults,
    find_pictures_fault,
    find_turboquant_fault,
)
from slipstream.planning.faults.known_bad import find_known_bad
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.plan import MemoryBudget
from slipstream.planning.settings import EngineSettings
from slipstream.planning.settings.conversation import find_conversation_faults
from slipstream.recipes.recipe import KnownBad


def find_faults(
    inputs: PlanInputs,
    settings: EngineSettings,
    memory: MemoryBudget,
    known_bad: tuple[KnownBad, ...],
) -> list[Fault]:
    """Return all faults; where the machine cannot serve anything, no other matters."""
    return find_host_fault(inputs.host) or [
        *find_layout_faults(inputs, settings),
        *find_pair_faults(inputs, settings),
        *find_method_faults(inputs, settings),
        *find_headroom_fault(inputs),
        *find_memory_faults(settings, memory),
        *find_turboquant_fault(inputs, settings),
        *find_agent_fault(inputs),
        *find_pictures_fault(inputs),
        *find_conversation_faults(inputs, settings),
        *find_known_bad(known_bad, inputs, settings),
    ]
