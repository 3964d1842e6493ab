"""Which drafter and which method: known models, candidates by rank, and the choice."""
