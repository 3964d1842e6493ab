"""Patches of vLLM, each for the versions and the source that it was written for.

vLLM calls `apply_named` in every process of its own (entry point group `vllm.general_plugins`).
Unless SLIPSTREAM_PATCHES names patches or SLIPSTREAM_SWAPS asks for swaps of the drafter, it does
nothing and imports nothing.
"""

import os
from types import ModuleType

VARIABLE = "SLIPSTREAM_PATCHES"
SWAPS = "SLIPSTREAM_SWAPS"
BACKEND = "slipstream-file"


def apply_named() -> None:
    """Apply the patches that the environment names, separated by commas."""
    if os.environ.get(SWAPS):
        from slipstream.vllm_plugin.patches.application import when_imported

        when_imported("vllm.distributed.weight_transfer.factory", _register_file_transfer)
    if not (names := os.environ.get(VARIABLE)):
        return
    from vllm.version import __version_tuple__

    from slipstream.vllm_plugin.patches.application import apply
    from slipstream.vllm_plugin.patches.known import PATCHES

    apply(names.split(","), PATCHES, __version_tuple__)


def _register_file_transfer(module: ModuleType) -> None:
    """Add our backend to `--weight-transfer-config` in this process."""
    register = module.WeightTransferEngineFactory
    if BACKEND not in register._registry:
        register.register_engine(
            BACKEND, "slipstream.vllm_plugin.steering.file_transfer", "FileTransfer"
        )
