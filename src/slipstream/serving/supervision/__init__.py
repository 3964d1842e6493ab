"""One engine kept up: its life, its watch, what follows a death."""
