"""The verbs that measure speed and text."""
