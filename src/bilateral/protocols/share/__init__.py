"""Secret-shared prediction (P4): one client asks, another answers with its private network, the server helps."""
