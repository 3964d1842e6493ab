"""Who may reach a server: keys, addresses, the gate's settings."""
