"""Sealed training: gradients on shares between a client (batch) and the server (weights); nobody sees anything."""
