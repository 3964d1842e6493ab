"""A drafter that knows fewer positions than are served gets a rotary table for all of them."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch

METHODS = ("dflash", "dspark")


def raise_positions(module: Any) -> None:
    """Do for these drafters what vLLM does for EAGLE's, at the same place."""
    config_class = module.SpeculativeConfig
    check = config_class.__post_init__

    def check_and_raise(self: Any) -> Any:
        checked = check(self)
        if self.method in METHODS and self.draft_model_config is not None:
            drafter = self.draft_model_config.hf_config
            served = self.target_model_config.max_model_len
            drafter.max_position_embeddings = max(drafter.max_position_embeddings, served)
        return checked

    config_class.__post_init__ = check_and_raise


PATCH = Patch(
    name="drafter-positions",
    since=(0, 32),
    before=(0, 33),
    module="vllm.config.speculative",
    touches="SpeculativeConfig.__post_init__",
    source_sha256="aff56b18ad15a2a8e2b354066f790fd62617db5e67edf4d4e3ce49caea84d3ac",
    symptom="runner V2 hands a DFlash drafter positions past its rotary table: the first request "
    "longer than the drafter's context ends the engine with an illegal memory access",
    proof="tests/engine/test_patches.py::"
    "test_the_drafter_turns_the_last_position_only_with_the_patch",
    upstream="https://github.com/vllm-project/vllm/pull/57964",
    drop_when="a release holds PR #57964, or V2 stops drafting past the drafter's context",
    change=raise_positions,
)
