"""Training runs as reports."""
