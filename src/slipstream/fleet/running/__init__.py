"""Groups started, stopped, watched and examined."""
