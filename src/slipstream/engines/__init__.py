"""What an engine version can do, and how it wants to be told."""
