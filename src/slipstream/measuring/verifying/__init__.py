"""Is the text the same: the certificate and what it rests on."""
