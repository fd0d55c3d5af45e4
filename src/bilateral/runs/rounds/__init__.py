"""Rounds: clients train one model together."""
