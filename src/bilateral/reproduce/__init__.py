"""The papers' tables, redone: their figures and ours side by side (`bilateral reproduce`).

papers/     a file a paper: what stands in each of its tables, and what is measured for it
tables      what a table is made of: rows (work), cells (figures), settings that differ, findings
tasks/      the kinds of work; all of it is done by `compare`, the benchmarks, the audit and heterogeneous runs
runner      does what is left of a table, row by row, each row a file
"""
