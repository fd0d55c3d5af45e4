"""What a network computes, without its weights: its description, the compiler that writes it, the walk through it."""
