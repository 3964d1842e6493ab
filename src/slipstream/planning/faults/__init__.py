"""What speaks against a plan: refusals and warnings, each with a way out.

Faults between two checkpoints are in `checkpoints/pairing.py`, those of an engine version in
`engines/vllm.py`, combinations that were seen to fail in `recipes/catalogue/known-bad/`.
"""

from slipstream.checkpoints.pairing import Fault
from slipstream.planning.faults import checks
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
    return checks.find_host_fault(inputs.host) or [
        *checks.find_layout_faults(inputs, settings),
        *checks.find_pair_faults(inputs, settings),
        *checks.find_method_faults(inputs, settings),
        *checks.find_headroom_fault(inputs),
        *checks.find_memory_faults(settings, memory),
        *checks.find_turboquant_fault(inputs, settings),
        *checks.find_agent_fault(inputs),
        *checks.find_pictures_fault(inputs),
        *find_conversation_faults(inputs, settings),
        *find_known_bad(known_bad, inputs, settings),
    ]
