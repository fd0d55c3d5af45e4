"""Selective sharing of the largest gradients, with noise (Shokri and Shmatikov)."""
