"""The client that measures: connections, streams, requests, loads."""
