"""Engines: from a plan to a finished run. In one process here; NVIDIA FLARE will sit beside it."""
