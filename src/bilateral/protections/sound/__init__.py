"""Sound distributed noise: clipping and noise whose epsilon holds against everybody."""
