"""Who may reach a server: keys, addresses and the gate's settings."""
