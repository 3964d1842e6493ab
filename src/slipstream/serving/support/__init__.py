"""What leaves this machine for a bug report: collected by an allow-list, then redacted."""
