"""A running engine's speculation: what it did, what it does, and what should be done about it."""
