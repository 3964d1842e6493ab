"""What a machine does when a fleet's control machine asks it over SSH."""
