"""One address before all groups: HAProxy for whoever asks, `vllm-router` to choose a replica."""
