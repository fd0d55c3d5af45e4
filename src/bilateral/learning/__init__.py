"""Rounds of federated training: clients with data, a server with a model, and any protection in between."""
