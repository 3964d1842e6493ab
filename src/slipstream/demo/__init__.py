"""The same prompts with and without drafts, token by token: what `slipstream demo` shows."""
