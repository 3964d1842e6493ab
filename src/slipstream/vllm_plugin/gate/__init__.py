"""The gate before vLLM's API, an ASGI middleware that imports nothing of ours."""
