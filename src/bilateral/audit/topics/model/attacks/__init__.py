"""What an adversary computes from its view alone: nothing here imports a recording."""
