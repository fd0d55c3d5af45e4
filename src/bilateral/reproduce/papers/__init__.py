"""A file a paper: its tables."""
