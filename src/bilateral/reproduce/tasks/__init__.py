"""Kinds of work behind rows."""
