"""What a machine does when a fleet's control machine asks it over SSH: it looks at itself, and answers."""
