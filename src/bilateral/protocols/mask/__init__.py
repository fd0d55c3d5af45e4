"""Secure aggregation: the server learns the weighted sum of the uploads and no single upload (client, server)."""
