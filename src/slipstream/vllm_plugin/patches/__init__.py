"""Patches of vLLM, each for the versions and the source that it was written for.

vLLM calls `apply_named` in every process of its own (entry point group `vllm.general_plugins`).
Unless SLIPSTREAM_PATCHES names patches or SLIPSTREAM_SWAPS asks for swaps of the drafter, it does
nothing and imports nothing.
"""

import os

VARIABLE = "SLIPSTREAM_PATCHES"
SWAPS = "SLIPSTREAM_SWAPS"


def apply_named() -> None:
    """Apply the patches that the environment names, separated by commas."""
    if os.environ.get(SWAPS):
        from slipstream.vllm_plugin.steering.registration import register_file_transfer

        register_file_transfer()
    if not (names := os.environ.get(VARIABLE)):
        return
    from vllm.version import __version_tuple__

    from slipstream.vllm_plugin.patches.application import apply
    from slipstream.vllm_plugin.patches.known import PATCHES

    apply(names.split(","), PATCHES, __version_tuple__)
