"""What shares of numbers go through between two linear layers: comparison and truncation, and the kernels of both."""
