"""MP-CDP, an ablation of P2: noise of a trusted server."""
