"""One engine kept running: its start, its watch and its restart."""
