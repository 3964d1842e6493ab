"""What an answer may be held to: compiled in a child process before the engine sees it."""
