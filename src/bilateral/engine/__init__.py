"""Engines: from a plan to a finished run.

`in_process` runs everyone here; `remote` is the same loop over sites that are elsewhere, and `flare` reaches them.
"""
