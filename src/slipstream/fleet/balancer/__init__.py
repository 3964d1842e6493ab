"""HAProxy, the one address before all groups: its file, its process, its admin socket."""
