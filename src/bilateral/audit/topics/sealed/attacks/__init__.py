"""What an adversary of sealed training computes, from a view."""
