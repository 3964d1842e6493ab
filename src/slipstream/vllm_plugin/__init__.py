"""Code inside vLLM's processes: gate, patches, steering. Of ours it imports records only."""
