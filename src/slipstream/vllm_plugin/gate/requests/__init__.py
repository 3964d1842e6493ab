"""What is asked: within limits, in fields and shapes that the engine knows."""
