"""What masked sums give away: sizes, presence, weights; and real-valued masks."""
