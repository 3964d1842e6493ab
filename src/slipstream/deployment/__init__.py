"""A plan as files for somebody else's platform: a chart for Kubernetes, values for other stacks."""
