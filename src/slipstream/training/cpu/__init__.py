"""Training on a CPU: speculators' models in a loop of ours."""
