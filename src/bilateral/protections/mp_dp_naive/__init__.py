"""MP-DP-Naive, an ablation of P2: normal noise of every client."""
