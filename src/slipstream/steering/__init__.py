"""The speculation of a running engine: its ledger, its state, its drifts and what to do."""
