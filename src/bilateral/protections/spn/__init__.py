"""A secret loss at every client, whose gradient perturbs what it uploads (Fan et al.)."""
