"""The model that clients train and are not meant to have: its function, its parameters, its training data."""
