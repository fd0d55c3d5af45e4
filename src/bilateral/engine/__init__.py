"""Engines: from a plan to a finished run, whatever its kind (`kind`).

`term` is the shell around every run, `here` runs everyone in this process, `remote` is for sites elsewhere, and
`flare` reaches them.
"""
