"""Training on random sketches of the weights (Wang et al.)."""
