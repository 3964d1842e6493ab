"""Plans measured in turns, and the verdict on them."""
