"""Secret-shared prediction (P4): three parties, their messages, and what it guarantees."""
