"""How much of the engine a caller may have."""
