"""What a machine does when a fleet's desk asks it over SSH: it looks at itself, and answers."""
