"""Client programs for a served model: their settings, and whether the server supports them."""
