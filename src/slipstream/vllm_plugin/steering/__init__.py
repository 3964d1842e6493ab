"""What runs in the engine's core and reports its steps, and what shows that report."""
