"""How machines are reached, equipped and held: OpenSSH, commands and files there, the lease."""
