"""Code inside vLLM's processes: gate, patches, steering. It imports nothing else of ours."""
