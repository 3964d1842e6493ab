"""What runs inside vLLM's own processes: the gate before its API. Nothing of ours is imported."""
