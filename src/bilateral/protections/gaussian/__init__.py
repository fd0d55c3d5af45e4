"""FedSGD with plain Gaussian noise on every upload (P0, table IV)."""
