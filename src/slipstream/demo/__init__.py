"""The same prompts with and without drafts, token by token, for `slipstream demo`."""
