"""The command line: one file per verb, and the parser and screen that they share."""
