"""Arithmetic modulo 2^64: products on whatever the machine has, streams of masks, packed bits."""
