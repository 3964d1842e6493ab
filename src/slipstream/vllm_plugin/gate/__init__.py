"""The gate before vLLM's API: an ASGI middleware that imports no other package of ours."""
