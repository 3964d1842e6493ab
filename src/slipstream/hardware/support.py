"""Whether DFlash can be served on a machine, whatever the model."""

from slipstream.errors import UnsupportedHostError
from slipstream.hardware.host import Host

# The least of the kernel libraries that vLLM 0.32 picks from (platforms/cpu.py).
_CPU_ARCHITECTURES = {"x86_64": "avx2", "aarch64": "asimd"}


def find_obstacle(host: Host) -> UnsupportedHostError | None:
    """Return why this machine cannot serve, None if it can."""
    called = host.processor.model or host.processor.architecture
    if host.platform != "linux":
        return UnsupportedHostError(
            f"{called} runs {host.platform}, and vLLM runs DFlash on Linux only",
            hint="run slipstream on the Linux machine that will serve",
        )
    if host.accelerators:
        return None
    needed = _CPU_ARCHITECTURES.get(host.processor.architecture)
    if needed is None:
        return UnsupportedHostError(
            f"no accelerator was found, and vLLM has no CPU build for {called}",
            hint="slipstream probe --verbose, on a machine with an accelerator",
        )
    if needed not in host.processor.features:
        return UnsupportedHostError(
            f"no accelerator was found, and {called} lacks {needed}, which vLLM's CPU build needs",
            hint="slipstream probe --verbose, on a machine with an accelerator",
        )
    return None


def require_supported(host: Host) -> None:
    """Raise if DFlash cannot be served on a machine."""
    if (obstacle := find_obstacle(host)) is not None:
        raise obstacle
