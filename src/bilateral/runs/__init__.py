"""One folder a kind of run."""
