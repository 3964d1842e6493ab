"""Records of a fleet as text; what machines say of themselves is escaped."""
