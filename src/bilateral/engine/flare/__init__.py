"""NVIDIA FLARE as the engine: provisioning, processes, the recipe and its supervisor. The only importer of nvflare."""
