"""A server that does not follow the protocol."""
