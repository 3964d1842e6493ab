"""Slipstream: plug-and-play DFlash speculative decoding on vLLM."""

__version__ = "0.1.0a1"
