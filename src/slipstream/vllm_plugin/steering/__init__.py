"""Steering inside the engine: its scheduler, its ledger of requests, its flight recorder."""
