"""The measuring client: connections, streams, requests and loads."""
