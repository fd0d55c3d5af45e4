"""Functional encryption of inner products, with divided noise (Xu et al.)."""
