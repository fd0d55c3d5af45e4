"""FedSGD: no protection, the yardstick."""
