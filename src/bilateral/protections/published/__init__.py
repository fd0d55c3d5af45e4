"""P2's scheme as published: MP_Server, DDP_Client, MU_Server."""
