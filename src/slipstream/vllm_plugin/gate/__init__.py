"""The gate before vLLM's API: an ASGI middleware; of ours it imports records only."""
