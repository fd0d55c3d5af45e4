"""A perturbed model, and uploads under threshold Paillier (Tang et al.)."""
