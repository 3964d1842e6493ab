"""A plan's engine as a running process under supervision."""
