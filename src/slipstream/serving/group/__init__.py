"""The supervisors of one engine's ranks: what they say to each other, signed, over the link."""
