"""The speed and correctness of a running server, and the acceptance of its drafts."""
