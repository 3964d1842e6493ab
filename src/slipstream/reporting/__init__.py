"""Records rendered for people."""
