"""Another drafter for an engine that serves."""
