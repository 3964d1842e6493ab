"""What a running engine reports of its steps and drafts, and what follows from it."""
