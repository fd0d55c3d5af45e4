"""What a server makes of ciphertexts and of parts of their openings."""
