"""The verbs that run a server."""
