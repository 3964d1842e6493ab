"""vLLM 0.32: what it refuses, and what it silently gets wrong.

Facts were read in the source of 0.32.0; paths in comments are relative to its package.
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Literal

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Family
from slipstream.checkpoints.pairing import Fault
from slipstream.engines.vllm_methods import METHODS

VERSION = "0.32.0"
COMMAND = ("python", "-m", "vllm.entrypoints.openai.api_server")
CPU_BLOCK_TOKENS = 128  # platforms/cpu.py
GPU_BLOCK_TOKENS = 16
Runner = Literal["V1", "V2"]

SHOWN_FAMILIES: dict[Family, str] = {
    "dflash": "DFlash",
    "dflash2": "DFlash2",
    "dspark": "DSpark",
    "eagle3": "EAGLE-3",
    "eagle": "EAGLE",
    "mtp": "MTP",
}
_CPU_SCHEMES = ("int4", "int8", "fp8")
_NATIVE_SINCE = {"nvfp4": "10.0", "mxfp4": "10.0", "fp8": "8.9"}


@cache
def read_auxiliary_targets() -> frozenset[str]:
    """Return the target classes that hand out hidden states, as scripts/ listed them."""
    table = files("slipstream.engines").joinpath("auxiliary_targets.json").read_text()
    return frozenset(json.loads(table)["architectures"])


def find_engine_faults(
    target: Checkpoint,
    drafter: Checkpoint | None,
    *,
    runner: Runner,
    on_cpu: bool,
    capability: str | None = None,
) -> Iterator[Fault]:
    """Return what this engine would refuse or get wrong about a pair that fits otherwise."""
    yield from _find_scheme(target, "target", on_cpu)
    yield from _find_emulation(target, capability)
    if drafter is None:
        return
    if drafter.draft is None:
        yield from _find_scheme(drafter, "drafter", on_cpu)
        return
    if METHODS[drafter.draft.family].reads_states:
        yield from _find_target_class(target, drafter.draft)
    yield from _find_runner(drafter, drafter.draft, runner)
    yield from _find_scheme(drafter, "drafter", on_cpu)
    yield from _find_quantized_drafter(drafter)


def _find_target_class(target: Checkpoint, draft: DraftPart) -> Iterator[Fault]:
    if target.architecture is None or target.architecture in read_auxiliary_targets():
        return
    yield Fault(
        code="target-class",
        verdict="refuse",
        message=f"vLLM {VERSION} runs no {SHOWN_FAMILIES[draft.family]} on {target.architecture}: "
        "that class hands out no auxiliary hidden states",
        hint=f"slipstream plan {target.name} --method ngram",
    )


def _find_runner(drafter: Checkpoint, draft: DraftPart, runner: Runner) -> Iterator[Fault]:
    """config/vllm.py:2976-2991 lists what only the V2 runner does."""
    if runner == "V2":
        return
    mixed = {part.kind for part in drafter.layers or ()} == {"full", "sliding"}
    needs = {"dflash2": "DFlash2", "dspark": "DSpark"}.get(draft.family)
    if needs is None and mixed:
        needs = "a drafter with both sliding and full layers"
    if needs is not None:
        yield Fault(
            code="runner",
            verdict="refuse",
            message=f"{drafter.name} is {needs}, which needs vLLM's V2 runner, "
            "and this machine runs V1",
            hint="a plain DFlash drafter, or a CUDA machine",
        )


def _find_scheme(checkpoint: Checkpoint, role: str, on_cpu: bool) -> Iterator[Fault]:
    if checkpoint.quantization is None:
        return
    scheme, method = checkpoint.quantization.scheme, checkpoint.quantization.method
    if scheme == "other":
        yield Fault(
            code=f"{role}-quantization",
            verdict="refuse",
            message=f"{checkpoint.name} is stored as {method}, which vLLM {VERSION} does not load",
            hint="a checkpoint in NVFP4, FP8, INT8, INT4 or bfloat16",
        )
    elif on_cpu and scheme not in _CPU_SCHEMES:
        yield Fault(
            code=f"{role}-quantization",
            verdict="refuse",
            message=f"{checkpoint.name} is stored as {scheme}, which vLLM's CPU build cannot run",
            hint="a checkpoint in bfloat16, FP8, INT8 or INT4",
        )


def _find_emulation(target: Checkpoint, capability: str | None) -> Iterator[Fault]:
    """Older generations unpack these weights in every step by Marlin."""
    if target.quantization is None or capability is None:
        return
    native = _NATIVE_SINCE.get(target.quantization.scheme)
    if native is None or _ordered(capability) >= _ordered(native):
        return
    yield Fault(
        code="emulated",
        verdict="warn",
        message=f"{target.quantization.scheme} is native from capability {native} on; on "
        f"{capability} vLLM unpacks the weights in every step",
        hint="a checkpoint in INT4, INT8 or bfloat16, if it is too slow",
    )


def _ordered(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _find_quantized_drafter(drafter: Checkpoint) -> Iterator[Fault]:
    if drafter.quantization is None or drafter.quantization.scheme == "other":
        return
    yield Fault(
        code="quantized-drafter",
        verdict="warn",
        message=f"{drafter.name} is quantized ({drafter.quantization.scheme}): vLLM {VERSION} has "
        "the code for it, but vllm#51581 is open and nobody reported it running",
        hint="watch vllm:spec_decode_num_accepted_tokens on /metrics; or take it in bfloat16",
    )
