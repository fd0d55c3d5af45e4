"""Which of two uploads is it: worlds that differ by who sent what."""
