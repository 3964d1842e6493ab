"""What is watched while an engine serves: its life, its ledger, its gate's files."""
