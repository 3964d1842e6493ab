"""Layers of a model to bytes per token and sequence, and a plan's use of the memory."""
