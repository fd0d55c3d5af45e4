"""Kinds of run, one folder each; the table of them is `bilateral/engine/kind.py`."""
