"""Sums of encrypted integers: threshold Paillier, CKKS, and functional encryption for inner products."""
