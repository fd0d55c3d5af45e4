"""Sums under CKKS, with one key for all clients."""
