"""Who believes whom in a fleet: a private authority, certificates and keys on every machine."""
