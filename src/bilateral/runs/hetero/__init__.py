"""Heterogeneous runs: clients with models of their own answer each other's queries."""
