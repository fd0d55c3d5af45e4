"""Threshold Paillier, with noise that is divided among honest clients (Truex et al.)."""
