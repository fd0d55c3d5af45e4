"""Sealed training: what clients, server, dealers and those who collude make of its steps; and crafted models."""
