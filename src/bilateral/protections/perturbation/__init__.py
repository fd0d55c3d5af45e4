"""Model perturbation: clients train on a model that is not the server's."""
