"""How a supervisor is started and stopped: by a terminal, systemd or a container."""
