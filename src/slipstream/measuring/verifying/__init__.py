"""Whether the text is the same with speculation: the certificate and its evidence."""
