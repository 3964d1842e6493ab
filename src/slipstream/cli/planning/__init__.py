"""The verbs that look before you start."""
