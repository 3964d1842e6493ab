"""Rules for patches: which repairs the plugin makes inside vLLM, and why here.

The patches themselves are in `slipstream.vllm_plugin.patches`, which nothing imports; the engine
is told their names by a variable.
"""

import json
from collections.abc import Mapping

from slipstream.planning.memory import TURBOQUANT_BITS
from slipstream.planning.plan import Decision
from slipstream.planning.raw_arguments import parse_raw
from slipstream.planning.situation import Choice, Situation

VARIABLE = "SLIPSTREAM_PATCHES"
CPU_SAMPLING = "cpu-sampling"
CPU_TOP_K = "cpu-top-k"
DRAFTER_POSITIONS = "drafter-positions"
TURBOQUANT_GRAPHS = "turboquant-graphs"

_ONE_SPECULATOR = ("dflash", "dflash2", "dspark")
_GRAPHS = "--compilation-config"


def decide_patches(
    situation: Situation, context: int, settled: Mapping[str, str | None]
) -> list[Choice[str]]:
    """Name every patch without which this plan would meet the fault that it repairs."""
    found = (
        *_decide_cpu_patches(situation, settled),
        _decide_drafter_positions(situation, context),
        _decide_turboquant_graphs(situation, settled),
    )
    return [choice for choice in found if choice is not None]


def name_patches(patches: list[Choice[str]]) -> list[Decision]:
    """Give the variable by which the plugin in the engine learns the names."""
    if not patches:
        return []
    names = ",".join(choice.value for choice in patches)
    because = "; ".join(choice.because for choice in patches)
    return [Choice(names, patches[0].source, because).as_decision(VARIABLE)]


def drafts_past_its_context(situation: Situation, context: int) -> bool:
    """Say whether a drafter that knows too few positions can be given the others.

    Only on runner V2 (V1 stops drafting there), and only with unscaled positions: a scaled
    rotary table has a length of its own. The target must reach so far itself, or be stretched.
    """
    draft, drafter, target = situation.draft, situation.drafter, situation.target
    if draft is None or drafter is None or situation.runner == "V1":
        return False
    reaches = target.context is not None and context <= target.context
    return (
        draft.family in _ONE_SPECULATOR
        and drafter.context is not None
        and drafter.context < context
        and drafter.rope is not None
        and drafter.rope.scaling == "default"
        and (reaches or "--hf-overrides" in parse_raw(situation.wishes.raw))
    )


def _decide_cpu_patches(
    situation: Situation, settled: Mapping[str, str | None]
) -> list[Choice[str]]:
    if not situation.on_cpu or not _speculates(settled):
        return []
    return [
        Choice(
            CPU_SAMPLING,
            "hardware",
            "on a CPU, drafted requests with a temperature are sampled at uninitialised memory "
            "(vllm#55005)",
        ),
        Choice(CPU_TOP_K, "hardware", "on a CPU with drafts, top_k without top_p ends the engine"),
    ]


def _decide_drafter_positions(situation: Situation, context: int) -> Choice[str] | None:
    if not drafts_past_its_context(situation, context):
        return None
    return Choice(
        DRAFTER_POSITIONS,
        "checkpoint",
        "past the drafter's context vLLM reads beyond its rotary table (vllm#57941, PR #57964)",
    )


def _decide_turboquant_graphs(
    situation: Situation, settled: Mapping[str, str | None]
) -> Choice[str] | None:
    """Our own plans split the graphs; this is for graphs that the user chose after `--`."""
    if (
        situation.on_cpu
        or not _speculates(settled)
        or settled.get("--kv-cache-dtype") not in TURBOQUANT_BITS
        or "--enforce-eager" in settled
        or _has_split_graphs(settled)
    ):
        return None
    return Choice(
        TURBOQUANT_GRAPHS,
        "user",
        "TurboQuant with speculation gives degenerate text under whole graphs "
        "(vllm#53180, PR #53406)",
    )


def _speculates(settled: Mapping[str, str | None]) -> bool:
    return any(flag.startswith(("--speculative-config", "--spec-")) for flag in settled)


def _has_split_graphs(settled: Mapping[str, str | None]) -> bool:
    """One dotted key makes vLLM forget the JSON (utils/argparse_utils.py)."""
    dotted = {flag: value for flag, value in settled.items() if flag.startswith(f"{_GRAPHS}.")}
    given = dotted.get(f"{_GRAPHS}.cudagraph_mode")
    mode = given if dotted else _read_mode(settled.get(_GRAPHS))
    return mode in ("PIECEWISE", "NONE")


def _read_mode(value: str | None) -> object:
    try:
        settings = json.loads(value or "")
    except ValueError:
        return None
    return settings.get("cudagraph_mode") if isinstance(settings, dict) else None
