"""FedSGD whose uploads are masked: the server sees sums, the clients the model."""
