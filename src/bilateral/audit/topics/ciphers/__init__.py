"""Uploads under ciphertexts: what those who hold no key, or ask for the wrong opening, read of single ones."""
