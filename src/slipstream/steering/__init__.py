"""What is decided about an engine while it serves, from what it reports of its requests."""
