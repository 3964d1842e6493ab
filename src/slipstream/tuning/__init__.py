"""The speed of every draft length at every load, from a few measurements, and the best one."""
