"""What a running engine's ledger of requests shows: summaries, drift, and what to do about it."""
