"""The command line: one thin file a verb, and the frame around them."""
