"""A canary: one group serves something new beside the others, and the ledger decides about it."""
