"""Two plans in turns, and the verdict on them."""
