"""Federated deep learning with privacy in both directions."""
