"""Several machines as one record: planned together, started together, looked at together."""
