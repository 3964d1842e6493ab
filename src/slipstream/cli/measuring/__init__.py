"""The verbs that judge speed and text."""
