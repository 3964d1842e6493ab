"""A server that learns from its own traffic: kept text, decision, candidate, generations."""
