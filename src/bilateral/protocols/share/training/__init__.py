"""One training step on shares: the first party has the weights, the second the batch, and neither sees the other's."""
