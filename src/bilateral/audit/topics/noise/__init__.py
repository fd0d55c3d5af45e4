"""Differential privacy: whether neighbouring worlds can be told apart by more than epsilon allows."""
