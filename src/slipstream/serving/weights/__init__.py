"""Weights at a commit on this disk, checked before an offline start."""
