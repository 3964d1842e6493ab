"""What a running server answers, how fast, and what became of its drafts."""
