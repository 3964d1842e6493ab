"""How fast every draft length would be at every load, from a few measurements, and the best."""
