"""What an engine version supports, and its command line."""
