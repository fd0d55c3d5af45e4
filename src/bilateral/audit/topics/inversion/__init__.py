"""Samples from uploads: gradient inversion, labels, and what sums of rounds with one sample a client give away."""
