"""The cache that a real engine made for itself: its blocks, their tokens, all its bytes."""

import json
import sys
from pathlib import Path

from vllm import LLM


def main() -> None:
    """Start the engine of the job and look at what its worker allocated."""
    job = json.load(sys.stdin)
    engine = LLM(**job["engine"]).llm_engine
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    pool = runner.kv_cache_config
    storages = {
        cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes()
        for cache in runner.kv_caches
    }
    outcome = {
        "blocks": pool.num_blocks,
        "usable_blocks": core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "block_tokens": pool.kv_cache_groups[0].kv_cache_spec.block_size,
        "bytes": sum(storages.values()),
        "layers": sum(len(group.layer_names) for group in pool.kv_cache_groups),
    }
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
