"""Records as text for a terminal."""
