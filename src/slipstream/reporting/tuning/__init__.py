"""Tunings and sizings as text and as pages."""
